"""The ring as its process writes it: what a call costs, what is kept of it, and whose ring it is."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankwise.evidence.journal import Journal
from rankwise.probe import process, ring, sites

ALL_REDUCE = ring.NUMBER["all_reduce"]


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The probe's modules in this process, as if it had just come aboard; nothing is hooked."""
    monkeypatch.setattr(process, "live", str(tmp_path))
    monkeypatch.setattr(ring, "_pid", 0)
    monkeypatch.setattr(ring, "current", None)
    monkeypatch.setattr(sites, "_numbers", {})
    yield tmp_path


def test_a_call_tells_what_it_took_unless_its_slot_was_used_again(live: Path) -> None:
    own = ring.open_ring(str(live))
    assert own is not None and ring.open_ring(str(live)) is own
    first = own.enter(ALL_REDUCE, sys._getframe())
    assert 0 < own.leave(first) < 10**11
    for _ in range(ring.CAPACITY):
        last = own.enter(ALL_REDUCE, sys._getframe())

    assert own.leave(first) == 0, "another call's slot by now"
    assert own.leave(last) > 0 and own.count_of(ALL_REDUCE) == ring.CAPACITY + 1


def test_each_name_is_written_once_however_often_it_is_used(live: Path) -> None:
    own = ring.open_ring(str(live))
    assert own is not None
    tensor = SimpleNamespace(shape=(2, 3), dtype="torch.float32")
    for _ in range(3):
        own.leave(own.enter(ALL_REDUCE, sys._getframe(), tensor, "7", reduce_op="SUM"))
    tensor.dtype = Path("torch.float32")  # something else with the same text
    own.leave(own.enter(ALL_REDUCE, sys._getframe(), tensor, "8", reduce_op="SUM"))
    journal = Journal(os.getpid())
    journal.read_more(live / f"p-{os.getpid()}.jsonl")

    assert sorted(journal.names.values()) == ["7", "8", "SUM", "torch.float32"]


def test_a_forked_process_writes_to_no_ring_of_its_parents(live: Path) -> None:
    own = ring.open_ring(str(live))
    assert own is not None
    ring._after_fork()  # as Python calls it in the child

    assert ring.current is None
    assert ring.open_ring(str(live / "elsewhere")) is None, "what cannot be made is not tried again"
    (live / "elsewhere").mkdir()
    assert ring.open_ring(str(live / "elsewhere")) is None
    ring._after_fork()
    other = ring.open_ring(str(live / "elsewhere"))
    assert other is not None and other is not own and own.count_of(ALL_REDUCE) == 0


def test_where_there_is_no_room_there_is_no_ring(live: Path) -> None:
    (live / f"r-{os.getpid()}").touch()  # cannot be made: it is already there

    assert ring.open_ring(str(live)) is None
    assert ring.current is None
    found = Journal(os.getpid())
    found.read_more(live / f"p-{os.getpid()}.jsonl")
    assert any("ring" in what for what in found.broken)
