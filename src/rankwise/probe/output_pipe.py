"""Gives a rank its own pipe to the launcher for what it prints, so that the launcher knows the rank of every line.

Only descriptors that are the launcher's own pipe are replaced (by another pipe of the launcher): what the user redirected stays.
"""

import os
import sys

from . import journal
from .process import RANK_VARIABLES

_done_pid = 0


def separate() -> None:
    """Replace stdout and stderr by pipes of this process alone. Once per process; children inherit them."""
    global _done_pid
    shared = os.environ.get("RANKWISE_PIPES", "").split(",")
    address = os.environ.get("RANKWISE_SINK", "")
    if _done_pid == os.getpid():
        return
    _done_pid = os.getpid()
    ours = [fd for fd in (1, 2) if _identity(fd) in shared]
    if len(ours) < 2:
        journal.write("streams", out="" if 1 in ours else _target(1), err="" if 2 in ours else _target(2))
    if not ours or not address:
        return
    ends = {fd: os.pipe() for fd in ours}
    try:
        names = "".join("o" if fd == 1 else "e" for fd in ours)
        has_received = _send(address, f"{os.getpid()} {names} {_rank_in_environment()}\n", [ends[fd][0] for fd in ours], is_confirmed=True)
        for fd in ours if has_received else ():  # writing to a pipe without a reader would end this process
            os.dup2(ends[fd][1], fd, inheritable=True)
    finally:
        for read_end, write_end in ends.values():
            os.close(read_end)
            os.close(write_end)


def name_rank(rank: int) -> None:
    """Tell the launcher which rank this process turned out to be."""
    address = os.environ.get("RANKWISE_SINK", "")
    if address and _rank_in_environment() != str(rank):
        _send(address, f"{os.getpid()} - {rank}\n", [])


def _send(address: str, text: str, fds: list[int], is_confirmed: bool = False) -> bool:
    """Send descriptors with a message; False where the launcher does not confirm them (it may have used up its own)."""
    import _socket

    link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        link.settimeout(2.0)
        link.connect(address)
        rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
        link.sendmsg([text.encode()], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if fds else [])
        return not is_confirmed or link.recv(1) == b"k"
    finally:
        link.close()


def _rank_in_environment() -> str:
    for name in RANK_VARIABLES:
        if os.environ.get(name, "").isdigit():
            return os.environ[name]
    return "-"


def _identity(fd: int) -> str:
    try:
        status = os.fstat(fd)
    except OSError:
        return "closed"
    return f"{status.st_dev}:{status.st_ino}"


def _target(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""
