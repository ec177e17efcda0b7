"""Where hosts come in: it listens where it was asked to, and nothing that comes disturbs it."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator

import psutil
import pytest

from rankwise.meet.ports import connect
from rankwise.preflight import meeting_listener
from rankwise.preflight.meeting_listener import NUM_PORTS, MeetingListener
from rankwise.preflight.wire import GREETING, Message, receive_message, send_message


@pytest.fixture
def listener(free_port: int) -> Iterator[MeetingListener]:
    found = MeetingListener(["127.0.0.1"], free_port, lambda hello, address: None)
    yield found
    found.close()
    for remote in found.hosts():
        remote.leave()


def test_it_listens_at_its_address_only(listener: MeetingListener) -> None:
    own = [link for link in psutil.Process().net_connections("tcp") if link.status == "LISTEN" and link.laddr.port in listener.ports]

    assert len(listener.ports) == NUM_PORTS
    assert {link.laddr.ip for link in own} == {"127.0.0.1"}


RUBBISH = {
    "nothing": b"",
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a huge message": GREETING + struct.pack("!I", 1 << 31),
    "no JSON": GREETING + struct.pack("!I", 4) + b"\xff\xfe\x00{",
    "no object": GREETING + struct.pack("!I", 2) + b"[]",
    "deep JSON": GREETING + struct.pack("!I", 60000) + b"[" * 60000,
}


@pytest.mark.parametrize("data", RUBBISH.values(), ids=RUBBISH)
def test_rubbish_disturbs_nobody(listener: MeetingListener, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", listener.ports[0])) as stranger:
        with contextlib.suppress(OSError):  # it may have heard enough before all is said
            stranger.sendall(data)
            stranger.shutdown(socket.SHUT_WR)
        remote, _ = connect("127.0.0.1", listener.ports[0], 2.0)
        assert remote is not None
        with remote:
            remote.settimeout(5)
            assert remote.recv(len(GREETING)) == GREETING
            remote.sendall(GREETING)
            send_message(remote, {"name": "x", "told": {}}, 5)
            assert receive_message(remote, 5) == {"in": True}
            deadline = time.monotonic() + 5
            while not listener.hosts() and time.monotonic() < deadline:
                time.sleep(0.01)

    assert [each.hello["name"] for each in listener.hosts()] == ["x"]


def test_a_host_that_knows_that_it_is_in_is_among_the_hosts(listener: MeetingListener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be in nobody's list, and nobody would hang up."""

    def send_and_dawdle(sock: socket.socket, message: Message, timeout_s: float) -> None:
        send_message(sock, message, timeout_s)
        time.sleep(0.2)

    monkeypatch.setattr(meeting_listener, "send_message", send_and_dawdle)
    remote, _ = connect("127.0.0.1", listener.ports[0], 2.0)
    assert remote is not None
    with remote:
        remote.sendall(GREETING)
        send_message(remote, {"name": "x", "told": {}}, 5)
        assert remote.recv(len(GREETING)) == GREETING
        assert receive_message(remote, 20) == {"in": True}

        assert [each.hello["name"] for each in listener.hosts()] == ["x"]


def test_a_host_that_falls_silent_is_left_behind(listener: MeetingListener) -> None:
    remote, _ = connect("127.0.0.1", listener.ports[0], 2.0)
    assert remote is not None
    with remote:
        remote.sendall(GREETING)
        send_message(remote, {"name": "x", "told": {}}, 5)
        while not listener.hosts():
            time.sleep(0.01)
        (inside,) = listener.hosts()
        started = time.monotonic()
        assert inside.ask({"do": "clock"}, 0.3) is None
        assert time.monotonic() - started < 15 and inside.is_gone
