"""leftover processes

Processes of earlier jobs that are still there: ranks and their DataLoader workers whose launcher is gone. They hold memory, ports and GPUs.
(The check of the rendezvous port says who holds that, the check of GPU memory who holds it.)

Warns with RW617.
"""

from __future__ import annotations

import os
import time
from typing import Any

import psutil

from rankwise.findings import Place
from rankwise.preflight.facts import CheckedJob, Facts, Here, Seen, seeing_hosts
from rankwise.sizes import bytes_text, seconds_text

GROUP = "resources"
_SIGNS = ("TORCHELASTIC_RUN_ID", "WORLD_SIZE", "LOCAL_RANK")
_MOST = 20


def look(here: Here) -> Facts:
    found, unseen = [], 0
    ancestors = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter(["pid", "ppid"]):
        if process.info["ppid"] != 1 or process.pid in ancestors:
            continue
        try:
            environ = process.environ()
            # A launcher in a session of its own (nohup, a scheduler's step) has no RANK; its ranks have it as their parent.
            if "RANK" in environ and any(sign in environ for sign in _SIGNS):
                found.append(_leftover(process, environ))
        except psutil.AccessDenied:
            unseen += 1
        except (psutil.Error, OSError):
            continue
    return {"found": found[:_MOST], "count": len(found), "unseen": unseen}


def _leftover(process: psutil.Process, environ: dict[str, str]) -> dict[str, Any]:
    return {
        "pid": process.pid,
        "program": process.name(),
        "user": process.username(),
        "rank": environ.get("RANK", ""),
        "memory": process.memory_info().rss,
        "age_s": max(0.0, time.time() - process.create_time()),
    }


def judge(job: CheckedJob, seen: Seen) -> None:
    for host, facts in seeing_hosts(job, "leftovers", seen):
        unseen = f" ({facts['unseen']} processes of other users not looked at)" if facts["unseen"] else ""
        seen.values[host.name] = f"{facts['count'] or 'none'}{unseen}"
        if facts["found"]:
            worst = max(facts["found"], key=lambda process: process["memory"])
            seen.add(
                "RW617",
                f"{facts['count']} process{'es' * (facts['count'] != 1)} of an earlier job still run{'s' * (facts['count'] == 1)} on {host.name}",
                host,
                certain=False,
                culprits=tuple(Place(host=host.name, pid=process["pid"]) for process in facts["found"][:4]),
                why=f"the largest is {worst['program']} (pid {worst['pid']}, user {worst['user']}, rank {worst['rank']}): "
                f"{bytes_text(worst['memory'])}, {seconds_text(worst['age_s'])} old; its launcher is gone",
                next=(f"if they are yours and done: kill {' '.join(str(process['pid']) for process in facts['found'])}",),
            )
