"""The lane's memory: used again, given back, and never more than was allowed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rankwise.pool.memory.shared_memory import Arena, Segment
from tests.pool.open_files import open_files

MB = 1 << 20


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(200 * MB)
    yield made
    made.close()


def test_inputs_that_grow_bit_by_bit_never_use_up_the_lane(arena: Arena) -> None:
    for size in range(10, 200, 5):
        slot = arena.take(size * MB)
        assert slot is not None, f"{size} MB"
        assert arena.total_bytes <= arena.limit_bytes
        arena.drop(slot)

    assert len(arena.segments) < 10


def test_memory_that_nobody_uses_any_more_goes_back_to_the_machine(arena: Arena) -> None:
    first = arena.write(np.ones(90 * MB, np.uint8))
    assert first is not None
    segment = arena.segments[first.segment]
    assert os.fstat(segment.fd).st_blocks * 512 >= 90 * MB
    arena.drop(first)

    second = arena.write(np.full(150 * MB, 2, np.uint8))

    assert second is not None and second.segment != first.segment
    assert os.fstat(segment.fd).st_blocks == 0
    assert arena.segments[second.segment].view[second.offset + 149 * MB] == 2


def test_what_is_in_use_is_not_given_back(arena: Arena) -> None:
    kept = arena.write(np.full(90 * MB, 7, np.uint8))
    assert kept is not None

    assert arena.take(150 * MB) is None
    assert (arena.segments[kept.segment].view[kept.offset : kept.offset + 90 * MB] == 7).all()


def test_what_a_forked_child_may_still_read_is_used_again_when_that_has_ended(arena: Arena) -> None:
    def places() -> list[Any]:
        """Where the next arrays would lie."""
        made = [arena.lend((MB,), "uint8", False) for _ in range(4)]
        return [array.ctypes.data for array in made]

    array = arena.lend((MB,), "uint8", False)
    assert array is not None
    place = array.ctypes.data
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(tell)
        os.read(told, 1)  # until the parent says so, or is gone
        os._exit(0)
    del array

    assert place not in places()
    assert places() == places()  # those came after the fork
    os.close(tell)
    os.waitpid(child, 0)
    os.close(told)
    assert place in places()


def test_memory_that_cannot_be_had_is_told_with_its_size_and_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, size: int) -> None:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(os, "ftruncate", refuse)
    before = open_files()
    with pytest.raises(OSError, match="4096 bytes of shared memory cannot be had: File too large"):
        Segment.create(4096, "test")

    assert not open_files() - before
