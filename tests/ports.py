"""Free ports for tests: below those that the system hands to outgoing connections, so that nothing takes one in between."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_NEIGHBOURS = 4  # `check` listens at the rendezvous port and the next three
_LOWEST = 10_000
_random = random.SystemRandom()  # tests seed the common generator, and every process would try the same ports


def free_port() -> int:
    """A port that nothing listens on, and neither on the next three."""
    handed_out_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(1000):
        port = _random.randrange(_LOWEST, max(handed_out_from, _LOWEST + 1000) - _NEIGHBOURS)
        if all(_is_free(each) for each in range(port, port + _NEIGHBOURS)):
            return port
    raise OSError("no four free ports in a row on this host")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))  # every address: what listens on another one may be in the way as well
        except OSError:
            return False
        return True
