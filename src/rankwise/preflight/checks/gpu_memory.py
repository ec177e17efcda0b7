"""GPU memory already taken

How much of each GPU's memory is in use before the job starts, and by which process.

Warns with RW631 above 1 GiB or 5 %, fails above half.
"""

from __future__ import annotations

from typing import Any

from rankwise.findings import Place
from rankwise.preflight.facts import CheckedJob, Facts, Here, Seen, seeing_hosts
from rankwise.sizes import bytes_text

GROUP = "gpus"
_NOTABLE, _NOTABLE_SHARE, _WRONG_SHARE = 1 << 30, 0.05, 0.5


def look(here: Here) -> Facts:
    return here.gpus


def judge(job: CheckedJob, seen: Seen) -> None:
    for host, facts in seeing_hosts(job, "gpu-memory", seen):
        gpus = [gpu for gpu in facts["gpus"] if gpu["total"]]
        if not gpus:
            seen.blind[host.name] = "the GPUs do not tell their memory"
            continue
        seen.values[host.name] = f"at most {bytes_text(max(gpu['used'] for gpu in gpus))} taken of {bytes_text(gpus[0]['total'])}"
        for i, gpu in enumerate(facts["gpus"]):
            if not gpu["total"] or (gpu["used"] < _NOTABLE and gpu["used"] < _NOTABLE_SHARE * gpu["total"]):
                continue
            pids = [process["pid"] for process in gpu["processes"]]
            seen.add(
                "RW631",
                f"{bytes_text(gpu['used'])} of {bytes_text(gpu['total'])} on GPU {i} of {host.name} are already taken",
                host,
                severity="error" if gpu["used"] > _WRONG_SHARE * gpu["total"] else "warning",
                culprits=tuple(Place(host=host.name, pid=pid) for pid in pids[:4]) or (host.place,),
                why=", ".join(map(_holder_text, gpu["processes"])) or "by which process cannot be seen from here (a container?)",
            )


def _holder_text(process: dict[str, Any]) -> str:
    taken = f" {bytes_text(process['memory'])}" if process["memory"] else ""
    return f"{process['program'] or 'a process'} (pid {process['pid']}{', user ' + process['user'] if process['user'] else ''}){taken}"
