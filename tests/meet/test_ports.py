"""Ports of this host: who listens, and how a connection goes."""

from __future__ import annotations

import os
import socket

from rankwise.meet.ports import ListeningProcess, find_listeners, try_port


def test_the_listener_is_found_and_described() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (found,) = find_listeners(port)
        assert try_port("127.0.0.1", port, 5.0) == "connected"

    assert found.pid == os.getpid() and f"(pid {os.getpid()}, user " in str(found)
    assert try_port("127.0.0.1", port, 5.0) == "connection refused"
    assert str(ListeningProcess(None)) == "a process of another user"
