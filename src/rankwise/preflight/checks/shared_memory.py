"""shared memory

The room in `/dev/shm`, through which DataLoader workers hand over batches and NCCL's local ranks talk. Containers often have 64 MiB.

Fails with RW613 below 16 MiB, warns below 256 MiB per rank.
"""

from __future__ import annotations

import os

from rankwise.preflight.facts import CheckedJob, Facts, Here, Seen, seeing_hosts
from rankwise.sizes import bytes_text

GROUP = "resources"
_FOLDER = "/dev/shm"
_LEAST = 16 << 20
_COMFORT = 256 << 20


def look(here: Here) -> Facts:
    try:
        stats = os.statvfs(_FOLDER)
    except OSError as error:
        return {"size": 0, "free": 0, "ranks": here.ranks, "error": error.strerror or "cannot be read"}
    writable = os.access(_FOLDER, os.W_OK)
    return {
        "size": stats.f_blocks * stats.f_frsize,
        "free": stats.f_bavail * stats.f_frsize,
        "ranks": here.ranks,
        "error": "" if writable else "may not be written",
    }


def judge(job: CheckedJob, seen: Seen) -> None:
    for host, facts in seeing_hosts(job, "shared-memory", seen):
        free, wanted = facts["free"], _COMFORT * facts["ranks"]
        seen.values[host.name] = facts["error"] or f"{bytes_text(free)} free of {bytes_text(facts['size'])}"
        if facts["error"] or free < wanted:
            seen.add(
                "RW613",
                f"{_FOLDER} on {host.name} {facts['error'] or f'has {bytes_text(free)} free'}",
                host,
                severity="error" if facts["error"] or free < _LEAST else "warning",
                why=f"{bytes_text(facts['size'])} in all, for {facts['ranks']} rank{'s' * (facts['ranks'] != 1)} and their DataLoader workers",
            )
