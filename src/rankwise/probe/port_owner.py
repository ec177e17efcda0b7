"""Finds out which process listens on a port, from /proc alone."""

import os
import re
from typing import Any

_LISTEN = "0A"


def holder_of(message: str) -> dict[str, Any] | None:
    """The process that holds the port an error message names; None where it is not known."""
    match = re.search(r"port:?\s*(\d+)", message) or re.search(r":(\d{2,5})\b", message)
    port = int(match[1]) if match else int(os.environ.get("MASTER_PORT", "0") or 0)
    inodes = _listening_inodes(port)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) != os.getpid() and _holds(pid, inodes):
            return {"port": port, "pid": int(pid), "name": _read(f"/proc/{pid}/comm"), "command": _read(f"/proc/{pid}/cmdline")[:300]}
    return None


def _listening_inodes(port: int) -> set[str]:
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _read(table).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
                found.add(fields[9])
    return found


def _holds(pid: str, inodes: set[str]) -> bool:
    try:
        return any(os.readlink(f"/proc/{pid}/fd/{fd}")[8:-1] in inodes for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().replace("\0", " ").rstrip()
    except OSError:
        return ""
