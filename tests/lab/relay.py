"""Carries packets between two TUN devices in two network namespaces, each after a delay.

`python -m tests.lab.relay HOST_NAMESPACE SWITCH_NAMESPACE SECONDS`
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import select
import struct
import sys
import time
from pathlib import Path

from tests.lab.hosts import INTERFACE

_SETIFF, _TUN, _NO_INFO = 0x400454CA, 0x0001, 0x1000
_NETNS = 0x40000000  # CLONE_NEWNET


def main(host: str, switch: str, delay_s: float) -> None:
    near, far = tun_in(host, INTERFACE), tun_in(switch, "far")
    waiting: list[tuple[float, int, int, bytes]] = []
    serial = 0
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select([near, far], [], [], pause)
        for source in readable:
            serial += 1
            try:
                packet = os.read(source, 65535)
            except OSError:  # not up yet
                time.sleep(0.01)
                continue
            heapq.heappush(waiting, (time.monotonic() + delay_s, serial, far if source == near else near, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, target, packet = heapq.heappop(waiting)
            try:
                os.write(target, packet)
            except OSError:  # the other side is not up yet: a packet is lost, as on any network
                pass


def tun_in(namespace: str, name: str) -> int:
    """A TUN device of this name in that namespace; it lives as long as this process."""
    with Path(f"/run/netns/{namespace}").open() as place:
        if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), _NETNS):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    fd = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(fd, _SETIFF, struct.pack("16sH22x", name.encode(), _TUN | _NO_INFO))
    return fd


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
