"""open-file and locked-memory limits

Each rank holds a socket to every other rank, and each DataLoader worker and shared tensor a file descriptor. RDMA needs memory it may
lock.

Fails with RW614 where fewer files may be open than the ranks of the job need at the least, warns below 4096 files, and where memory to
lock is limited on a host with InfiniBand or RoCE.
"""

from __future__ import annotations

import resource
from pathlib import Path

from rankwise.preflight.facts import CheckedJob, Facts, Here, Seen, seeing_hosts
from rankwise.sizes import bytes_text

GROUP = "resources"
_COMFORT = 4096
_BARE = 64  # files that a Python process with torch has open before it connects to others


def look(here: Here) -> Facts:
    files, files_hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return {
        "files": _finite(files),
        "files_hard": _finite(files_hard),
        "locked": _finite(locked),
        "rdma": Path("/sys/class/infiniband").is_dir() and any(Path("/sys/class/infiniband").iterdir()),
        "ranks": here.ranks,
    }


def judge(job: CheckedJob, seen: Seen) -> None:
    ranks = sum(host.of("ulimits").get("ranks", 1) for host in job.hosts)
    for host, facts in seeing_hosts(job, "ulimits", seen):
        files, locked = facts["files"], facts["locked"]
        lockable = "unlimited" if locked is None else bytes_text(locked)
        seen.values[host.name] = f"{'unlimited' if files is None else files} files, {lockable} locked"
        needed = _BARE + 4 * ranks  # a rank opens up to two connections to each other one, per group
        if files is not None and files < max(needed, _COMFORT):
            hard = facts["files_hard"]
            seen.add(
                "RW614",
                f"a process on {host.name} may open only {files} files",
                host,
                severity="error" if files < needed else "warning",
                why=f"{ranks} ranks need about {needed} before any DataLoader worker or shared tensor",
                next=(f"ulimit -n {hard if hard is not None and hard < 65536 else 65536}",),
            )
        if facts["rdma"] and locked is not None:
            why = "NCCL registers its buffers with the network card, which locks them"
            summary = f"{host.name} has RDMA devices but may lock only {lockable} of memory"
            seen.add("RW614", summary, host, severity="warning", why=why, next=("ulimit -l unlimited",))


def _finite(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit
