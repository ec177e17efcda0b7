"""A client of the ranks' store: every question has an answer, a limit, or a finding."""

from __future__ import annotations

import threading
import time
from itertools import islice
from typing import Any

import pytest
from torch.distributed import HashStore

from rankwise.train import store_client
from rankwise.train.errors import start_finding
from rankwise.train.store_client import StoreClient, StoreLost, pauses_s


@pytest.fixture
def client() -> StoreClient:
    return StoreClient(HashStore())


def test_the_first_to_write_is_the_one_all_read(client: StoreClient) -> None:
    assert client.look("outcome") is None
    assert client.put_first("outcome", "mine") == "mine"
    assert client.put_first("outcome", "theirs") == "mine"
    assert client.look("outcome") == "mine"
    client.put("outcome", "later")
    assert client.look("outcome") == "later"
    assert (client.add("count", 0), client.add("count", 2), client.add("count", 1)) == (0, 2, 3)


def test_a_wait_ends_with_the_word_or_with_the_time(client: StoreClient) -> None:
    timer = threading.Timer(0.05, lambda: client.put("word", "said"))
    timer.start()

    assert client.wait("word", time.monotonic() + 10) == "said"
    assert client.wait("word", time.monotonic() - 1) == "said", "what is there is there, also for who comes late"
    assert client.wait("other", time.monotonic() + 0.02) is None
    timer.join()


def test_who_waits_long_says_so_now_and_then(client: StoreClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_client, "TELL_AFTER_S", 0.02)
    monkeypatch.setattr(store_client, "TELL_EVERY_S", 0.04)
    told: list[float] = []

    def tell(waited_s: float) -> None:
        told.append(waited_s)
        if len(told) == 2:
            client.put("word", "said")

    client.wait("word", time.monotonic(), tell)
    assert told == []
    client.wait("word", time.monotonic() + 20, tell)

    assert len(told) == 2 and 0.02 < told[0] < told[1] - 0.03


class Broken:
    """A store whose connection has gone."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("Connection reset by peer\nException raised from recvBytes")


def test_a_store_that_is_gone_is_a_finding_of_who_knows_more() -> None:
    client = StoreClient(Broken())  # type: ignore[arg-type]

    with pytest.raises(StoreLost) as lost:
        client.look("word")
    assert lost.value.finding.code == "RW111"
    assert lost.value.finding.why == "the connection broke (Connection reset by peer)"

    client.find_loss = lambda said: start_finding("RW110", f"rank 0 took it along: {said}")
    with pytest.raises(StoreLost, match=r"rank 0 took it along: the connection broke"):
        client.add("count", 1)
    assert not client.carries_bulk("bulk", 1.0)


class Silent:
    """A store on a path that swallows large packets: the question never comes back."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def set(self, key: str, value: str) -> None:
        self.over.wait(20)


def test_a_path_that_swallows_large_packets_is_not_waited_for() -> None:
    silent, store = Silent(), HashStore()
    began = time.monotonic()

    assert not StoreClient(silent).carries_bulk("bulk", 0.02)  # type: ignore[arg-type]
    assert time.monotonic() - began < 10
    silent.over.set()
    assert StoreClient(store).carries_bulk("bulk", 10.0) and not store.check(["bulk"]), "and takes it away again"


def test_pauses_grow_to_the_longest() -> None:
    pauses = list(islice(pauses_s(0.001, 0.25), 40))

    assert pauses[0] == 0.001 and pauses == sorted(pauses) and pauses[-1] == 0.25
