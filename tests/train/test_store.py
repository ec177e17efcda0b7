"""The ranks' store: where rank 0 listens."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest
from torch.distributed import TCPStore

from rankwise.findings import Place
from rankwise.ranks import MeetingPlace
from rankwise.train import store
from rankwise.train.store import open_store
from tests.ports import free_port


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    yield
    store._kept.clear()


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


def test_a_store_stays_for_the_next_session_of_its_process_and_for_a_group_of_the_users_own() -> None:
    place, me = MeetingPlace("127.0.0.1", free_port()), Place(rank=0, host="node-a")
    open_store(place, me, 5.0).client.put("said", "yes")

    again = open_store(place, me, 5.0)
    own = TCPStore("127.0.0.1", place.port, is_master=True, wait_for_workers=False, multi_tenant=True)  # as torch's env:// opens it

    assert again.is_ours and again.client.look("said") == "yes" and own.get("said") == b"yes"
