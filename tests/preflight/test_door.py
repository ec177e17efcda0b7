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
from rankwise.preflight.door import DOORS, Door
from rankwise.preflight.wire import GREETING, receive_message, send_message


@pytest.fixture
def door(free_port: int) -> Iterator[Door]:
    found = Door(["127.0.0.1"], free_port, lambda hello, address: None)
    yield found
    found.close()
    for guest in found.guests():
        guest.leave()


def test_the_door_listens_at_its_address_only(door: Door) -> None:
    own = [link for link in psutil.Process().net_connections("tcp") if link.status == "LISTEN" and link.laddr.port in door.ports]

    assert len(door.ports) == DOORS
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
def test_rubbish_at_the_door_disturbs_nobody(door: Door, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", door.ports[0])) as stranger:
        with contextlib.suppress(OSError):  # the door may have heard enough before all is said
            stranger.sendall(data)
            stranger.shutdown(socket.SHUT_WR)
        guest, _ = connect("127.0.0.1", door.ports[0], 2.0)
        assert guest is not None
        with guest:
            guest.settimeout(5)
            assert guest.recv(len(GREETING)) == GREETING
            guest.sendall(GREETING)
            send_message(guest, {"name": "x", "told": {}}, 5)
            assert receive_message(guest, 5) == {"in": True}
            deadline = time.monotonic() + 5
            while not door.guests() and time.monotonic() < deadline:
                time.sleep(0.01)

    assert [each.hello["name"] for each in door.guests()] == ["x"]


def test_a_guest_that_falls_silent_is_left_behind(door: Door) -> None:
    guest, _ = connect("127.0.0.1", door.ports[0], 2.0)
    assert guest is not None
    with guest:
        guest.sendall(GREETING)
        send_message(guest, {"name": "x", "told": {}}, 5)
        while not door.guests():
            time.sleep(0.01)
        (inside,) = door.guests()
        started = time.monotonic()
        assert inside.ask({"do": "clock"}, 0.3) is None
        assert time.monotonic() - started < 2 and inside.is_gone
