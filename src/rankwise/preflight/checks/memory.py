"""memory

How much memory a rank can get: what is free on the machine, what the cgroup (a container's or a scheduler's limit) leaves, and what
`ulimit` allows, whichever is least, divided by the ranks of this host.

Fails with RW611 below 512 MiB per rank, which torch alone can need; warns below 2 GiB per rank, and where one host's ranks get less
than half of what the others' get.
"""

from __future__ import annotations

from statistics import median

from rankwise.preflight.facts import CheckedJob, Facts, Here, Seen, seeing_hosts
from rankwise.preflight.limits import memory_limits
from rankwise.sizes import bytes_text

GROUP = "resources"
_LEAST = 512 << 20
_COMFORT = 2 << 30
_SAID = {"machine": "this is what is free on the machine", "cgroup": "a cgroup limit: a container's or a scheduler's"}


def look(here: Here) -> Facts:
    limits = memory_limits()
    source = min(limits, key=lambda name: limits[name][1])
    limit, left = limits[source]
    return {"source": source, "limit": limit, "left": left, "ranks": here.ranks}


def judge(job: CheckedJob, seen: Seen) -> None:
    shares = {}
    for host, facts in seeing_hosts(job, "memory", seen):
        shares[host.name] = facts["left"] / max(1, facts["ranks"])
        limited = "" if facts["source"] == "machine" else f", limited by {facts['source']} to {bytes_text(facts['limit'])}"
        seen.values[host.name] = f"{bytes_text(shares[host.name])} per rank{limited}"
    usual = median(shares.values()) if len(shares) > 1 else 0.0
    for host in job.named(shares):
        share = shares[host.name]
        if share >= _COMFORT and share >= usual / 2:
            continue
        facts = host.of("memory")
        others = f"; the median of all hosts is {bytes_text(usual)}" if share < usual / 2 else ""
        seen.add(
            "RW611",
            f"{host.name} has {bytes_text(share)} of memory for each of its {facts['ranks']} rank{'s' * (facts['ranks'] != 1)}",
            host,
            severity="error" if share < _LEAST else "warning",
            why=f"{_SAID.get(facts['source'], facts['source'])}: {bytes_text(facts['left'])} left of {bytes_text(facts['limit'])}{others}",
        )
