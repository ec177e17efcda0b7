"""One append-only file of JSON lines per process: what this process knows about itself."""

from __future__ import annotations

import errno
import os
import sys
import time
from _json import encode_basestring_ascii as _quoted

from . import descriptors, process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_KEPT = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT".split()
_KEPT_PREFIXES = ("ROLE_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_RANK", "SLURM_", "TORCHELASTIC_", "TORCH_", "NCCL_", "GLOO_", "OMP_", "CUDA_")
_SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSW", "CREDENTIAL", "AUTH", "JWT", "SESSION", "COOKIE", "PRIVATE", "SIGNATURE")
_CONSTANTS = {None: "null", True: "true", False: "false"}


def write(what: str, /, **facts: Any) -> None:
    """Append one line. The file is opened and closed each time: readers see whole lines, and the script may close any descriptor."""
    if not process.live:
        return
    path = _path()
    facts["k"] = what
    facts.setdefault("t", time.time_ns())
    data = _json(facts).encode("ascii") + b"\n"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        kept = descriptors.find("journal", path)
        if error.errno not in (errno.EMFILE, errno.ENFILE) or kept < 0:
            raise
        os.write(kept, data)
        return
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _path() -> str:
    """The path of this process's own file; a forked child writes one of its own."""
    return f"{process.live}/p-{os.getpid()}.jsonl"


def write_process_info() -> None:
    """Who this process is: its command, its parent, and the part of its environment that decides about ranks."""
    write(
        "process",
        pid=os.getpid(),
        ppid=os.getppid(),
        argv=[part[:500] for part in sys.orig_argv[:40]],
        host=os.uname().nodename,
        env=rank_environment(),
    )
    descriptors.keep_open("journal", _path())  # so that the end is recorded even if the script has used up all descriptors


def rank_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    kept = {}
    for name, value in environ.items():
        wanted = name in _KEPT or name.startswith(_KEPT_PREFIXES)
        if wanted and not any(word in name.upper() for word in _SECRET_WORDS) and "@" not in value:
            kept[name] = value[:500]
    return kept


def _json(value: Any) -> str:
    """As `json.dumps(value, default=str)`: importing `json` costs a process without torch more than the rest of the probe."""
    if isinstance(value, str):
        return _quoted(value)
    if value is None or value is True or value is False:
        return _CONSTANTS[value]
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value) if value - value == 0 else "null"  # JSON has neither infinity nor NaN
    if isinstance(value, dict):
        return "{" + ", ".join([f"{_quoted(str(key))}: {_json(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join([_json(item) for item in value]) + "]"
    return _quoted(str(value))
