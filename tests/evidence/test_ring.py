"""The ring as the probe writes it and as the watcher reads it, and what is no ring."""

from __future__ import annotations

import os
import struct
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.evidence.journal import Journal
from rankwise.evidence.ring import RingView, RingWindow, read_ring
from rankwise.probe import process, ring, sites
from tests.evidence.strategies import FUZZ


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The probe's modules in this process, as if it had just come aboard; nothing is hooked."""
    monkeypatch.setattr(process, "live", str(tmp_path))
    monkeypatch.setattr(ring, "_pid", 0)
    monkeypatch.setattr(ring, "current", None)
    monkeypatch.setattr(sites, "_numbers", {})
    yield tmp_path


def view_of(live: Path) -> RingView:
    found = Journal(os.getpid())
    found.read_more(live / f"p-{os.getpid()}.jsonl")
    view = read_ring(live / f"r-{os.getpid()}", found)
    assert view is not None
    return view


def tensor(*shape: int, dtype: str = "torch.float32") -> types.SimpleNamespace:
    return types.SimpleNamespace(shape=shape, dtype=dtype)


def test_what_goes_in_comes_out(live: Path) -> None:
    own = ring.open_ring(str(live))
    assert own is not None
    first = own.enter(ring.NUMBER["all_reduce"], sys._getframe(), tensor(3, 4), "7", -1, "RedOpType.SUM")
    own.leave(first)
    second = own.enter(ring.NUMBER["broadcast"], sys._getframe(), tensor(1, 2, 3, 4, 5, dtype="torch.int64"), peer=2)
    own.leave(second, failed=True)
    own.enter(ring.NUMBER["barrier"], sys._getframe())
    own.mark(ring.NUMBER["next_batch"])
    own.mark(ring.NUMBER["next_batch"])

    view = view_of(live)

    assert view.head == 3
    assert view.counts == {"all_reduce": 1, "broadcast": 1, "barrier": 1, "next_batch": 2}
    reduce, broadcast, barrier = view.calls
    assert (reduce.op, reduce.sizes, reduce.dtype, reduce.group, reduce.reduce_op) == ("all_reduce", (3, 4), "float32", "7", "SUM")
    assert not reduce.is_open
    assert not reduce.failed
    assert reduce.started_ns <= reduce.ended_ns
    assert (broadcast.sizes, broadcast.dtype, broadcast.peer, broadcast.failed) == ((1, 2, 3, 4), "int64", 2, True)
    assert barrier.is_open
    assert barrier.peer is None
    assert barrier.group == "0"
    assert reduce.stack[0].file == __file__
    assert reduce.stack[0].function == "test_what_goes_in_comes_out"


def test_only_the_last_calls_are_kept_and_all_are_counted(live: Path) -> None:
    own = ring.open_ring(str(live))
    assert own is not None
    frame = sys._getframe()
    long_ago = own.enter(ring.NUMBER["barrier"], frame)
    for _ in range(ring.CAPACITY + 5):
        own.leave(own.enter(ring.NUMBER["all_reduce"], frame, tensor(2**40)))
    own.leave(long_ago)  # its slot belongs to another by now

    view = view_of(live)

    assert len(view.calls) == ring.CAPACITY
    assert view.counts == {"barrier": 1, "all_reduce": ring.CAPACITY + 5}
    assert {call.op for call in view.calls} == {"all_reduce"}
    assert all(not call.is_open and not call.failed for call in view.calls)
    assert view.calls[0].sizes == (2**31 - 1,)  # a size that does not fit is cut, never refused


def test_a_window_shows_every_move(live: Path) -> None:
    own = ring.open_ring(str(live))
    assert own is not None
    window = RingWindow(live / f"r-{os.getpid()}", len(ring.OPS))
    seen = {window.marks()}
    for step in (lambda: own.enter(0, sys._getframe()), lambda: own.mark(5), lambda: own.mark(5)):
        step()
        seen.add(window.marks())

    assert len(seen) == 4
    assert window.head() == 1


@pytest.mark.parametrize("content", [None, b"", b"short", bytes(100_000)])
def test_a_window_onto_nothing_shows_nothing(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "r-1").write_bytes(content)
    window = RingWindow(tmp_path / "r-1", 30)

    assert window.head() == 0
    assert not window.marks().strip(b"\0")


def some_journal() -> Journal:
    return Journal(1, ops=["all_reduce", "barrier"], names={1: "torch.float32"})


@FUZZ
@given(data=st.binary(max_size=2000))
def test_any_bytes_are_a_ring_or_none(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "ring"
    path.write_bytes(data)

    assert read_ring(path, some_journal()) is None


@FUZZ
@given(
    slot_size=st.sampled_from([0, 1, 64, 72, 2**32 - 1]) | st.just(ring.SLOT.size),
    capacity=st.integers(0, 4) | st.just(2**32 - 1),
    num_ops=st.integers(0, 4) | st.sampled_from([4096, 4097, 2**32 - 1]),
    head=st.integers(0, 2**64 - 1),
    body=st.binary(max_size=600),
)
def test_any_header_is_a_ring_or_none(tmp_path: Path, slot_size: int, capacity: int, num_ops: int, head: int, body: bytes) -> None:
    path = tmp_path / "ring"
    path.write_bytes(ring.HEADER.pack(ring.MAGIC, slot_size, capacity, num_ops, head, 1) + body)

    view = read_ring(path, some_journal())

    assert view is None or len(view.calls) <= capacity


@FUZZ
@given(data=st.data())
def test_any_slots_can_be_read(tmp_path: Path, data: st.DataObject) -> None:
    """A ring whose header is right and whose slots hold anything, numbered rightly."""
    slots = b""
    for n in range(3):
        rest = data.draw(st.binary(min_size=ring.SLOT.size - 8, max_size=ring.SLOT.size - 8))
        slots += struct.pack("<Q", n + 1) + rest
    path = tmp_path / "ring"
    path.write_bytes(ring.HEADER.pack(ring.MAGIC, ring.SLOT.size, 3, 2, 3, 1) + bytes(16) + slots)

    view = read_ring(path, some_journal())

    assert view is not None
    assert all(call.op in ("all_reduce", "barrier") and len(call.sizes) <= 4 for call in view.calls)


def test_a_ring_without_its_journal_names_nothing(tmp_path: Path, live: Path) -> None:
    own = ring.open_ring(str(live))
    assert own is not None
    own.enter(0, sys._getframe())

    view = read_ring(live / f"r-{os.getpid()}", Journal(1))

    assert view is not None
    assert (view.calls, view.counts) == ((), {})
    assert read_ring(live / "none", Journal(1)) is None


def test_splits_belong_to_their_call_and_only_the_last_are_kept(live: Path) -> None:
    own = ring.open_ring(str(live))
    assert own is not None
    for i in range(ring.NUM_SPLITS + 3):
        own.note_splits(own.enter(ring.NUMBER["all_to_all_single"], sys._getframe()), [i, 2], [3, 2**40])
    own.note_splits(own.enter(ring.NUMBER["all_to_all"], sys._getframe()), [1] * (ring.MOST_PEERS + 1), [1] * (ring.MOST_PEERS + 1))

    calls = view_of(live).calls

    assert [call.sent for call in calls[:4]] == [(), (), (), (3, 2)]
    assert calls[-2].sent == (ring.NUM_SPLITS + 2, 2) and calls[-2].expected == (3, 2**32 - 1)
    assert calls[-1].op == "all_to_all" and calls[-1].sent == ()
