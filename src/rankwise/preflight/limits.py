"""What this process may use: the limits of its cgroup (both versions), of setrlimit and of the machine."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import psutil

_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60  # version 1 writes a huge number for "none"


def memory_limits() -> dict[str, tuple[int, int]]:
    """By what sets it: the limit in bytes, and what is left below it."""
    machine = psutil.virtual_memory()
    found = {"machine": (machine.total, machine.available)}
    cgroups = [(limit, max(0, limit - used)) for limit, used in _cgroup_memory()]
    if cgroups:
        found["cgroup"] = min(cgroups, key=lambda pair: pair[1])
    for name, number in (("RLIMIT_AS", resource.RLIMIT_AS), ("RLIMIT_DATA", resource.RLIMIT_DATA)):
        soft, _ = resource.getrlimit(number)
        if soft != resource.RLIM_INFINITY:
            found[name] = (soft, soft)
    return found


def cores() -> float:
    """CPUs this process may keep busy: its affinity, and its cgroup's quota where that is less."""
    allowed = float(len(os.sched_getaffinity(0)))
    return min([allowed, *_cgroup_quotas()])


def _cgroup_memory() -> Iterator[tuple[int, int]]:
    for folder in _own_cgroups("memory"):
        for limit_file, used_file in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit, used = _number(folder / limit_file), _number(folder / used_file)
            if limit is not None and used is not None and limit < _NO_LIMIT:
                yield limit, max(0, used - _reclaimable(folder))


def _reclaimable(folder: Path) -> int:
    """Page cache that goes away when memory is wanted, but is counted as used until then."""
    with contextlib.suppress(OSError, ValueError):
        stat = dict(line.split()[:2] for line in (folder / "memory.stat").read_text().splitlines())
        return int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))
    return 0


def _cgroup_quotas() -> Iterator[float]:
    for folder in _own_cgroups("cpu"):
        with contextlib.suppress(OSError, ValueError):
            quota, period = (folder / "cpu.max").read_text().split()
            if quota != "max":
                yield int(quota) / int(period)
        quota_us, period_us = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota_us and period_us and quota_us > 0:
            yield quota_us / period_us


def _own_cgroups(controller: str) -> Iterator[Path]:
    """The folders of this process's cgroup and of those above it, in either version; inside a container the root is its own."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            roots = [_ROOT / controller] if controllers else [_ROOT, _ROOT / "unified"]
            for root in roots:
                folder = root / path.lstrip("/")
                yield from (place for place in (folder, *folder.parents) if place.is_relative_to(root) and place.is_dir())


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return None
