"""What this process may use: the limits of its control groups, of setrlimit and of the machine."""

from __future__ import annotations

import os
import resource

import psutil

from rankwise import cgroups


def memory_limits() -> dict[str, tuple[int, int]]:
    """The memory limits, by what sets each: the limit in bytes, and what is left below it."""
    machine = psutil.virtual_memory()
    found = {"machine": (machine.total, machine.available)}
    groups = [(limit, max(0, limit - used)) for limit, used in cgroups.memory_limits()]
    if groups:
        found["cgroup"] = min(groups, key=lambda pair: pair[1])
    for name, number in (("RLIMIT_AS", resource.RLIMIT_AS), ("RLIMIT_DATA", resource.RLIMIT_DATA)):
        soft, _ = resource.getrlimit(number)
        if soft != resource.RLIM_INFINITY:
            found[name] = (soft, soft)
    return found


def cores() -> float:
    """CPUs this process may keep busy: its affinity, and its control group's quota where that is less."""
    allowed = float(len(os.sched_getaffinity(0)))
    return min([allowed, *cgroups.cpu_quotas()])
