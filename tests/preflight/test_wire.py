"""Messages between hosts."""

from __future__ import annotations

import socket
import struct

import pytest

from rankwise.preflight.wire import ConnectionLost, receive_message


def test_a_message_that_stops_in_the_middle_ends_in_time() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(struct.pack("!I", 100) + b"{")
        with pytest.raises(ConnectionLost):
            receive_message(other, 0.2)
