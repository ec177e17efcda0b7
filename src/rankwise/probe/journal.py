"""One append-only file of JSON lines per process: what this process knows about itself."""

import os
import sys
import time
from typing import Any

_live = ""
_path = ""
_pid = 0

_KEPT = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
_KEPT_PREFIXES = ("ROLE_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_RANK", "SLURM_", "TORCHELASTIC_", "TORCH_", "NCCL_", "GLOO_", "OMP_", "CUDA_")
_SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSW", "CREDENTIAL", "AUTH")


def open_in(live: str) -> None:
    """From now on lines go to this process's own file; a forked child gets a new one."""
    global _live, _path, _pid
    if _pid != os.getpid():
        _pid, _live = os.getpid(), live
        _path = f"{live}/p-{_pid}.jsonl"


def write(what: str, /, **facts: Any) -> None:
    """Append one line. Opened and closed each time: no descriptor is held, and a reader sees whole lines."""
    if _pid != os.getpid():
        open_in(_live)
    import json

    facts["k"] = what
    facts.setdefault("t", time.time_ns())
    data = json.dumps(facts, default=str).encode("utf-8", "replace") + b"\n"
    fd = os.open(_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def write_card() -> None:
    """Who this process is: its command, its parent, and the part of its environment that decides about ranks."""
    write(
        "card",
        pid=os.getpid(),
        ppid=os.getppid(),
        argv=[part[:500] for part in sys.orig_argv[:40]],
        executable=sys.executable,
        cwd=os.getcwd(),
        host=os.uname().nodename,
        python=sys.version.split()[0],
        env=rank_environment(),
    )


def rank_environment() -> dict[str, str]:
    kept = {}
    for name, value in os.environ.items():
        wanted = name in _KEPT or name.startswith(_KEPT_PREFIXES)
        if wanted and not any(word in name for word in _SECRET_WORDS):
            kept[name] = value[:500]
    return kept
