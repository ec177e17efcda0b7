"""The ranks' store: where rank 0 listens."""

from __future__ import annotations

import errno
import socket

import pytest

from rankwise.findings import Place
from rankwise.ranks import MeetingPlace
from rankwise.train.store import open_store
from tests.train.stage import free_port


def test_a_kernel_without_ipv6_has_a_store_too(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def only_ipv4(family: int = socket.AF_INET, *args: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, *args)

    monkeypatch.setattr(socket, "socket", only_ipv4)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 0))])

    opened = open_store(MeetingPlace("node-a", free_port()), Place(rank=0, host="node-a"), 5.0)
    opened.connect().set("said", "yes")

    assert opened.is_ours and opened.client.look("said") == "yes"
