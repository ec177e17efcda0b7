"""The limits that control groups of the kernel set this process, in both versions of cgroups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rankwise.files import text_if_readable

_OWN = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60  # version 1 writes a huge number for "none"


def memory_limits() -> Iterator[tuple[int, int]]:
    """Limit and use in bytes, of each group around this process that has a limit."""
    for group in _groups("memory"):
        for limit_file, used_file in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit, used = text_if_readable(group / limit_file).strip(), text_if_readable(group / used_file).strip()
            if limit.isdigit() and used.isdigit() and int(limit) < _NO_LIMIT:
                yield int(limit), max(0, int(used) - _reclaimable(group))


def cpu_quotas() -> Iterator[float]:
    """Cores, of each group around this process that has a quota."""
    for group in _groups("cpu"):
        version_1 = text_if_readable(group / "cpu.cfs_quota_us"), text_if_readable(group / "cpu.cfs_period_us")
        quota, period = (*(text_if_readable(group / "cpu.max") or " ".join(version_1)).split(), "", "")[:2]
        if quota.isdigit() and period.isdigit():  # not "max", nor -1
            yield int(quota) / int(period)


def _reclaimable(group: Path) -> int:
    """Page cache: it counts as used memory, but the kernel frees it when memory is needed."""
    words = [line.split() for line in text_if_readable(group / "memory.stat").splitlines()]
    return sum(int(nbytes) for name, nbytes in words if name in ("inactive_file", "active_file"))


def _groups(controller: str) -> Iterator[Path]:
    """The folders of this process's group and of those above it; inside a container the root is its own."""
    for line in text_if_readable(_OWN).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        for root in [_ROOT / controller] if controllers else [_ROOT, _ROOT / "unified"]:
            folder = root / path.lstrip("/")
            yield from (place for place in (folder, *folder.parents) if place.is_relative_to(root) and place.is_dir())
