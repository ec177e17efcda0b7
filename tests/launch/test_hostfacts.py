"""Facts of this host that explain why a job does not start."""

from __future__ import annotations

import os
import socket

import pytest

from rankwise.launch import hostfacts
from rankwise.launch.hostfacts import find_host_facts
from rankwise.meet.network import Resolved


def test_who_holds_a_port_is_told_and_names_that_do_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"node-a": Resolved(("10.0.0.1",)), "node-b": Resolved(error="Name or service not known"), "node-c": Resolved(is_slow=True)}
    monkeypatch.setattr(hostfacts, "resolve", lambda name, seconds: known[name])
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        facts = find_host_facts({"node-a", "node-b", "node-c", ""}, {port, 1})

    assert facts.unresolved == ("node-b",), "a resolver that does not answer in time proves nothing"
    assert [(holder.port, holder.pid) for holder in facts.holders] == [(port, os.getpid())]
    assert facts.name == socket.gethostname() and "lo" in facts.interfaces
    assert facts.shm_free is None or facts.shm_free >= 0
