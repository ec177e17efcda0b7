"""How fast the connections to other hosts carry data, by the kernel's own count (TCP_INFO): bytes, and how long they were under way."""

import os
import socket
import stat
import struct
import time

from . import record

_EVERY_NS = 5_000_000_000
_TCP_INFO = 11
_ACKED, _BUSY, _LEAST = 120, 168, 184  # places of bytes_acked, busy_time and (after it) rwnd_limited in struct tcp_info
_MOST = 64

_looked_ns = 0


@record.budgeted
def look() -> None:
    """Now and then: one line with all connections to other hosts, each with its totals since it was opened."""
    global _looked_ns
    now = time.monotonic_ns()
    if _looked_ns and now - _looked_ns < _EVERY_NS:
        return
    _looked_ns = now
    found = [link for name in os.listdir("/proc/self/fd") if (link := _link(int(name))) is not None][:_MOST]
    if found:
        record.write("links", links=found)


def _link(fd: int) -> tuple[str, str, int, int] | None:
    """Local and remote address, bytes that arrived, microseconds that data was under way and the receiver had room for it."""
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return None
        with socket.socket(fileno=os.dup(fd)) as link:
            if link.family not in (socket.AF_INET, socket.AF_INET6) or link.type != socket.SOCK_STREAM:
                return None
            local, remote = link.getsockname()[0], link.getpeername()[0]
            info = link.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 256)
    except OSError:  # closed meanwhile, or not connected
        return None
    if local == remote or len(info) < _LEAST:
        return None
    (acked,), (busy, held) = struct.unpack_from("<Q", info, _ACKED), struct.unpack_from("<QQ", info, _BUSY)
    return local.removeprefix("::ffff:"), remote.removeprefix("::ffff:"), acked, max(0, busy - held)
