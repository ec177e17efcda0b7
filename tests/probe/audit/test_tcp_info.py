"""The kernel's counters of this process's own connections."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import time

import pytest

from rankwise.probe.audit import record, tcp_info


def test_a_connection_to_another_address_is_read_and_one_to_itself_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[dict[str, object]] = []
    monkeypatch.setattr(record, "write", lambda what, **facts: written.append({"a": what, **facts}))
    monkeypatch.setattr(tcp_info, "_looked_ns", 0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        other = socket.create_connection(server.getsockname(), source_address=("127.0.0.2", 0))
        same = socket.create_connection(server.getsockname(), source_address=("127.0.0.1", 0))
        ends = [server.accept()[0] for _ in range(2)]
        try:
            other.sendall(b"x" * 100_000)
            got = 0
            while got < 100_000:
                got += sum(len(end.recv(1 << 16)) for end in ends if end.getpeername()[0] == "127.0.0.2")
            while struct.unpack("i", fcntl.ioctl(other, termios.TIOCOUTQ, bytes(4)))[0]:
                time.sleep(0.001)  # some of it is not confirmed yet
            tcp_info.look()
            tcp_info.look()  # too soon after the first
        finally:
            for one in (other, same, *ends):
                one.close()

    (line,) = written
    own = {(local, remote): (num_bytes, busy) for local, remote, num_bytes, busy in line["links"]}
    assert own["127.0.0.2", "127.0.0.1"][0] >= 100_000 - 65_536  # the last of it may not be confirmed yet
    assert ("127.0.0.1", "127.0.0.1") not in own
