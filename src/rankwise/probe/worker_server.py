"""Starts torch's worker server: a C++ thread that answers with the flight recorder even while Python holds the GIL."""

import ctypes
import os
from typing import Any

from . import journal

_pid = 0


def start(live: str) -> None:
    """Serve the flight recorder on a unix socket. torch's names for this are private; where they are missing, nothing is served."""
    global _pid
    if _pid == os.getpid():
        return
    _pid = os.getpid()
    from torch._C import _distributed_c10d as c10d

    make = getattr(c10d, "_WorkerServer", None)
    if make is None:
        journal.write("broken", what="worker server", error="this torch has no _WorkerServer")
        return
    path = f"{live}/s-{_pid}"
    server = _without_announcement(lambda: make(path, -1))
    # Never destroyed: its destructor prints warnings, and joins a thread while the interpreter shuts down.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    journal.write("server", path=path)
    _allow_tracing()


def write_flight_recorder(live: str) -> None:
    """Write the flight recorder to a file when the process ends in an orderly way."""
    if _pid != os.getpid():
        return
    from torch._C import _distributed_c10d as c10d

    text: Any = None
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        dump = getattr(c10d, name, None)
        text = dump() if dump is not None else None
        if text and b'"entries"' in _bytes(text):
            break
    if text:
        fd = os.open(f"{live}/x-{_pid}.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, _bytes(text))
        finally:
            os.close(fd)


def _without_announcement(make: Any) -> Any:
    """Make the server without its announcement on stderr; everything else written there meanwhile is passed on."""
    read_end, write_end = os.pipe()
    saved = os.dup(2)
    try:
        os.dup2(write_end, 2)
        try:
            return make()
        finally:
            os.dup2(saved, 2)
            os.set_blocking(read_end, False)
            try:
                said = os.read(read_end, 1 << 16)
            except BlockingIOError:
                said = b""
            rest = b"".join(line for line in said.splitlines(keepends=True) if b"WorkerServer.cpp" not in line)
            if rest:
                os.write(2, rest)
    finally:
        for fd in (saved, read_end, write_end):
            os.close(fd)


def _allow_tracing() -> None:
    """Name the launcher as a tracer, so that its py-spy may read this process where Yama allows ptrace to ancestors only."""
    launcher = os.environ.get("RANKWISE_LAUNCHER_PID", "")
    if launcher.isdigit() and os.path.exists("/proc/sys/kernel/yama/ptrace_scope"):
        pr_set_ptracer = 0x59616D61
        ctypes.CDLL(None).prctl(pr_set_ptracer, ctypes.c_ulong(int(launcher)), 0, 0, 0)


def _bytes(text: Any) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode()
