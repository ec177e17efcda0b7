"""Sends and receives on a GPU's stream: the calls have returned, and only counts and sizes tell what does not fit."""

from __future__ import annotations

from dataclasses import replace

from rankwise.evidence.collectives import CollectiveLog, Signature
from rankwise.evidence.records import Call, RankEvidence
from tests.diagnose.jobs import NOW_NS, SECOND, job, main_thread, rank, root, stack_of

AT = "train.py:23 shift"


def exchanging(number: int, *transfers: tuple[str, int, int]) -> RankEvidence:
    """A rank that has begun these transfers (operation, peer, size), of which the last ones are still on the stream."""
    begun = NOW_NS - 20 * SECOND
    calls = tuple(
        Call(op, begun + i * 1000, begun + i * 1000 + 500, stack_of(AT), peer=peer, sizes=(size,), dtype="float32")
        for i, (op, peer, size) in enumerate(transfers)
    )
    log = CollectiveLog()
    for seq, call in enumerate(calls, 1):
        log.add(seq, Signature("0:p2p", call.op.lstrip("i"), peer=call.peer), call.started_ns, seq <= len(calls) - 2, call.stack)
    threads = main_thread(AT)
    return replace(rank(number, [], threads=threads, earlier_threads=threads, backend="nccl"), calls=calls, collectives=log)


def ring(me: int, rounds: int, size: int = 8) -> list[tuple[str, int, int]]:
    return [("isend", (me + 1) % 3, size), ("irecv", (me - 1) % 3, size)] * rounds


def test_the_rank_that_talks_to_the_wrong_neighbour_is_the_one_that_got_stuck_first() -> None:
    wrong = [*ring(2, 3), ("isend", 1, 8), ("irecv", 0, 8)]
    found = root(job(exchanging(0, *ring(0, 6)), exchanging(1, *ring(1, 6)), exchanging(2, *wrong)))

    assert found.code == "RW212"
    assert 2 in [place.rank for place in found.culprits], found


def test_a_ring_whose_oldest_transfers_are_answered_is_stuck_where_the_last_rank_is() -> None:
    """Ranks 0 and 1 are ahead of rank 2 on the stream: each of their transfers has a partner, or will have one."""
    wrong = [*ring(2, 3), ("isend", 1, 8), ("irecv", 0, 8)]
    last = exchanging(2, *wrong)
    last = replace(last, calls=(*last.calls[:-2], Call("batch_isend_irecv", NOW_NS - 19 * SECOND, 0, stack_of(AT)), *last.calls[-2:]))
    last.collectives.done[:] = bytes([1]) * len(last.collectives)
    found = root(job(exchanging(0, *ring(0, 6)), exchanging(1, *ring(1, 6)), last))

    assert found.code == "RW212"
    assert 2 in [place.rank for place in found.culprits], found


def test_transfers_of_another_size_are_told_with_both_lines() -> None:
    sends, receives = [("isend", 1, 8), ("isend", 1, 64)], [("irecv", 0, 64), ("irecv", 0, 8)]
    found = root(job(exchanging(0, *sends), exchanging(1, *receives)))

    assert (found.code, found.certain) == ("RW212", False)
    assert "rank 0 sends [8] to rank 1, which receives [64]" in found.summary
    assert [place.rank for place in found.culprits] == [0, 1]
