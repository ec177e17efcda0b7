"""Control messages between processes, of which either may be gone at any moment."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import pytest
import torch

from rankwise.pool import Model, Pool
from rankwise.pool.memory.shared_memory import Segment
from rankwise.pool.schedule.state import Seat
from rankwise.pool.transport.connection import Receiver, WorkerHandle, pair, send
from tests.pool.open_files import open_files


def test_what_was_said_before_the_end_still_counts_and_the_end_is_no_error() -> None:
    ours, theirs = pair()
    with ours, theirs:
        send(ours, ("run", 1))
        send(theirs, ("done", 2))
        theirs.close()  # without having read what came
        receiver = Receiver(ours)

        assert [receiver.receive(wait=True), receiver.receive(wait=True)] == [("done", 2), None]


def test_a_segment_that_cannot_be_had_keeps_its_number() -> None:
    handle = WorkerHandle(1, Seat("cpu", 1))
    segments = [Segment.create(4096, "test") for _ in range(2)]
    for number, segment in enumerate(segments):
        segment.map[:1] = bytes([number])

    handle.receiver.fds = [os.dup(segments[0].fd)]
    handle.add_segment(4096)
    handle.add_segment(4096)  # the kernel had no number left for its descriptor
    handle.receiver.fds = [os.dup(segments[1].fd)]
    handle.add_segment(4096)

    first, lost, last = handle.segments
    assert isinstance(first, Segment) and isinstance(last, Segment) and [first.map[0], last.map[0]] == [0, 1]
    assert isinstance(lost, OSError) and "cannot be read in this process" in str(lost)
    handle.close()
    for segment in segments:
        segment.close()


def test_a_result_that_cannot_be_mapped_fails_and_the_next_ones_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    with Pool({"widening": Model("tests.pool.models:linear", kwargs={"outputs": 100_000})}, workers=1, seed=0) as pool:
        before = pool.submit("widening", torch.ones(1, 10)).result().clone()
        adopted, calls = Segment.adopted, []

        def refused(fd: int, size: int) -> Any:
            calls.append(fd)
            if len(calls) > 1:
                return adopted(fd, size)
            os.close(fd)
            raise OSError(errno.ENOMEM, "no room")

        monkeypatch.setattr(Segment, "adopted", refused)
        kept: list[torch.Tensor] = []
        with pytest.raises(OSError, match="no room"):
            while True:  # until the worker needs another segment
                kept.append(pool.submit("widening", torch.ones(64, 10)).result())

        after = pool.submit("widening", torch.ones(1, 10)).result()

    assert torch.equal(before, after)
    assert all(torch.equal(result, before.expand_as(result)) for result in kept)


def test_a_worker_that_cannot_be_made_leaves_no_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_files()

    def refused(flags: int) -> Any:
        raise OSError(errno.EMFILE, "too many")

    monkeypatch.setattr(os, "pipe2", refused)
    with pytest.raises(OSError, match="too many"):
        WorkerHandle(1, Seat("cpu", 1))

    assert not open_files() - before


def test_a_timeout_for_all_sockets_of_the_caller_is_not_the_pools() -> None:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.05)  # as programs do that download something
    try:
        ours, theirs = pair()
        with ours, theirs:
            assert os.get_blocking(ours.fileno()) and os.get_blocking(theirs.fileno())  # the worker gets the file as it is
        with Pool({"slow": Model("tests.pool.models:slow_rows", args=(0.2,))}, workers=1) as pool:
            assert pool.submit("slow", torch.ones(2)).result(60).tolist() == [2.0, 2.0]
    finally:
        socket.setdefaulttimeout(before)
