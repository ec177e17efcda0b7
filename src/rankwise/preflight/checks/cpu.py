"""cores and load

How many cores each rank gets (affinity and cgroup quota counted), how busy they are before the job starts, and how much time the
hypervisor takes away (steal).

Warns with RW612 below one core per rank, above 70 % busy, above 5 % steal.
"""

from __future__ import annotations

import time
from pathlib import Path

from rankwise.preflight.facts import CheckedJob, Facts, Here, Seen, seeing_hosts
from rankwise.preflight.limits import cores

GROUP = "resources"
_SAMPLE_S = 0.5
_BUSY, _STEAL = 0.7, 0.05


def look(here: Here) -> Facts:
    before = _ticks()
    time.sleep(_SAMPLE_S)
    spent = [after - earlier for earlier, after in zip(before, _ticks())]
    total = max(1, sum(spent[:8]))
    idle = spent[3] + spent[4]
    # Our own torch process is importing meanwhile, on one core.
    own = 1 / max(1.0, cores())
    return {"cores": cores(), "ranks": here.ranks, "busy": max(0.0, 1 - idle / total - own), "steal": spent[7] / total}


def _ticks() -> list[int]:
    """user nice system idle iowait irq softirq steal, since the machine started."""
    return [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]


def judge(job: CheckedJob, seen: Seen) -> None:
    for host, facts in seeing_hosts(job, "cpu", seen):
        share = facts["cores"] / max(1, facts["ranks"])
        seen.values[host.name] = f"{share:.3g} cores per rank, {facts['busy']:.0%} busy, {facts['steal']:.0%} steal"
        for is_wrong, what, why in (
            (share < 1, f"has {facts['cores']:.3g} cores for {facts['ranks']} ranks", "each rank and each DataLoader worker wants a core"),
            (
                facts["busy"] > _BUSY,
                f"is {facts['busy']:.0%} busy before the job has started",
                "another job, or what is left of one, runs here",
            ),
            (
                facts["steal"] > _STEAL,
                f"loses {facts['steal']:.0%} of its CPU time to its hypervisor",
                "the machine below is shared with others",
            ),
        ):
            if is_wrong:
                seen.add("RW612", f"{host.name} {what}", host, why=why)
