"""A link is measured in all respects, and a closed port is told from a silent one."""

from __future__ import annotations

import socket
import time

from rankwise.meet.ports import connect
from rankwise.preflight.link_speed import measure_link
from rankwise.preflight.probes import Probes
from tests.preflight.conftest import TOKEN


def test_a_healthy_link_is_measured_in_all_respects(probes: Probes) -> None:
    facts = measure_link(probes.offer(), TOKEN, 1500)

    assert (facts["lost_out"], facts["lost_back"]) == (0.0, 0.0)
    assert 0 < facts["rtt_s"] < 1
    assert facts["largest"] == facts["wanted"] == 1472
    assert facts["up"] > 1e6 and facts["down"] > 1e6


def test_a_closed_port_is_told_from_a_silent_one(free_port: int) -> None:
    assert connect("127.0.0.1", free_port, 1.0) == (None, "connection refused")
    with socket.socket() as full:  # a queue of one that is full answers nobody, as a firewall does
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
            fillers.append(filler)
        time.sleep(0.1)
        found, how = connect("127.0.0.1", full.getsockname()[1], 0.5)
        for filler in fillers:
            filler.close()
    assert (found, how) == (None, "no answer")
