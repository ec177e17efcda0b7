"""Sends without receives, and ranks that wait for each other in a circle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwise.evidence.collective_log import CollectiveLog, Signature
from rankwise.evidence.records import Call, RankEvidence
from tests.diagnose.jobs import (
    FIVE,
    NOW_NS,
    SECOND,
    Slot,
    alarms,
    busy,
    calls_of,
    did,
    elsewhere,
    expect,
    finished,
    in_call,
    job,
    main_thread,
    new_group,
    numbered,
    raised,
    rank,
    root,
    stack_of,
    waiting,
)

# -- RW212: send and recv -----------------------------------------------------------------------------------------------------


def test_rw212_a_send_that_nobody_receives() -> None:
    evidence = job(in_call(0, "send", "train.py:8 push", peer=1), waiting(1, "barrier", "train.py:12 main", sizes=()))

    found = root(evidence)

    expect(found, "RW212", [0, 1], "send", "rank 0", "barrier", "recv", certain=False)
    assert {(place.rank, place.line) for place in found.culprits} == {(0, 8), (1, 12)}


@pytest.mark.parametrize("op", ["recv", "irecv"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_rw212_everybody_receives_first(op: str, world_size: int) -> None:
    if op == "irecv":
        ranks = [
            elsewhere(r, "ring.py:9 turn", after=[*FIVE, Slot(op, at="ring.py:8 turn", peer=(r - 1) % world_size)])
            for r in range(world_size)
        ]
    else:
        ranks = [in_call(r, op, "ring.py:8 turn", peer=(r - 1) % world_size) for r in range(world_size)]

    found = root(job(*ranks))

    assert (found.code, found.certain, found.deadlock) == ("RW212", True, True)
    assert op in found.summary and "send" in found.summary


STAGES = """
def average(loss):
    if stages.is_last:  # <- guard
        dist.all_reduce(loss)  # <- reduce
def step():
    dist.send(x, 1)  # <- send
for batch in data:
    average(step())
"""


@pytest.mark.parametrize("earlier", [3, 0])
def test_rw208_a_collective_of_the_peers_that_this_rank_never_came_to(earlier: int) -> None:
    """The stages of a pipeline have exchanged batches before: the last one's all_reduce over all ranks is the call too many."""
    source, lines = numbered(STAGES)
    send, reduce = [f"train.py:{lines['send']} step", "train.py:8 main"], [f"train.py:{lines['reduce']} average", "train.py:8 main"]
    first, last = in_call(0, "send", send, peer=1), waiting(1, "all_reduce", reduce)
    sent = calls_of(did("send", times=earlier, at=send, peer=1), ended_ns=NOW_NS - 50 * SECOND)
    taken = calls_of(did("recv", times=earlier, at="train.py:9 step", peer=0), ended_ns=NOW_NS - 50 * SECOND)
    stages = replace(first, calls=(*sent, *first.calls)), replace(last, calls=(*taken, *last.calls))
    evidence = job(*stages, sources={"train.py": source})

    found = root(evidence)

    if earlier:
        expect(found, "RW208", [1], "only rank 1 called all_reduce", "stages.is_last", certain=False)
        assert lines["guard"] in {place.line for place in found.culprits}
    else:
        expect(found, "RW212", [0, 1], certain=False)


def test_rw212_a_connection_lost_in_the_wait_of_a_receive() -> None:
    evidence = rank(1, [*FIVE, Slot("irecv", at="pipe.py:8 pull", peer=0)])
    lost = raised(evidence, "RuntimeError", "Connection closed by peer [127.0.0.1]:44960", "pipe.py:9 pull", ago_s=9)

    expect(root(job(finished(0), lost, exit_code=1)), "RW212", [0], "rank 1 waits in irecv from rank 0", "has ended")


def test_rw212_the_peer_has_ended_well_after_many_transfers() -> None:
    """Stages of a pipeline that count their batches differently: which of the two counts wrong cannot be told."""
    first, last = finished(0), in_call(1, "recv", "pipe.py:8 pull", peer=0)
    sent = calls_of(did("send", times=3, at="pipe.py:3 push", peer=1), ended_ns=NOW_NS - 50 * SECOND)
    taken = calls_of(did("recv", times=3, at="pipe.py:8 pull", peer=0), ended_ns=NOW_NS - 50 * SECOND)
    evidence = job(replace(first, calls=(*sent, *first.calls)), replace(last, calls=(*taken, *last.calls)))

    expect(root(evidence), "RW212", [0, 1], "has ended well, after 3 such transfers", certain=False)


def test_rw212_the_peer_has_ended() -> None:
    evidence = job(in_call(0, "recv", "train.py:8 pull", peer=2), busy(1), finished(2))

    found = root(evidence)

    expect(found, "RW212", [2], "recv", "rank 2 has ended")


def test_rw212_both_wait_with_the_same_direction() -> None:
    evidence = job(in_call(0, "send", "a.py:3 f", peer=1), in_call(1, "send", "a.py:3 f", peer=0))

    expect(root(evidence), "RW212", [0, 1], "send", "recv")


HEALTHY_TRANSFERS = {
    "the peer is at work": [in_call(0, "recv", peer=1), busy(1)],
    "the pair has just met": [in_call(0, "send", peer=1), in_call(1, "recv", peer=0)],
    "from anybody": [in_call(0, "send", peer=1), in_call(1, "recv", peer=None)],
    "a pipeline waits for its first stage": [busy(0), *[in_call(r, "recv", peer=r - 1) for r in (1, 2, 3)]],
    "a pipeline pushes towards a busy last stage": [*[in_call(r, "send", peer=r + 1) for r in (0, 1, 2)], busy(3)],
    "the peer waits in a group with somebody at work": [
        in_call(0, "recv", peer=1),
        waiting(1, group="1", groups=(new_group(1, 2, name="1"),)),
        busy(2, groups=(new_group(1, 2, name="1"),)),
    ],
    "the peer is in a collective that all have entered": [
        in_call(0, "recv", peer=1, after=[*FIVE, *did("broadcast", peer=0)]),
        waiting(1, "broadcast", peer=0),
        busy(2, after=[*FIVE, *did("broadcast", peer=0)]),
    ],
    "behind a long transfer": [in_call(0, "send", peer=1), in_call(1, "recv", peer=0), in_call(2, "recv", peer=1)],
    "a collective behind a long transfer": [in_call(0, "send", peer=1), in_call(1, "recv", peer=0), waiting(2), waiting(3)],
    "a long transfer": [in_call(0, "send", peer=1, samples=busy(0).samples), in_call(1, "recv", peer=0, samples=busy(1).samples)],
}


@pytest.mark.parametrize("kind", HEALTHY_TRANSFERS)
def test_transfers_that_may_still_complete_raise_no_alarm(kind: str) -> None:
    assert alarms(job(*HEALTHY_TRANSFERS[kind])) == []


# -- RW218: circles -----------------------------------------------------------------------------------------------------------

ROWS = (new_group(0, 1, name="1"), new_group(1, 2, name="2"), new_group(2, 0, name="3"))


@pytest.mark.parametrize("recorder", [True, False])
def test_rw218_two_ranks_wait_for_each_other_in_two_groups(recorder: bool) -> None:
    groups = (new_group(0, 1, name="1"), new_group(0, 1, name="2"))
    evidence = job(
        waiting(0, group="1", at="grid.py:5 rows", groups=groups, recorder=recorder),
        waiting(1, group="2", at="grid.py:6 columns", groups=groups, recorder=recorder),
        busy(2, groups=groups, recorder=recorder),
    )

    expect(root(evidence), "RW218", [0, 1], "different groups", "rank 0", "rank 1")


@pytest.mark.parametrize("is_usual", [True, False])
def test_a_call_that_was_never_made_before_is_no_matter_of_order(is_usual: bool) -> None:
    """Ranks 0 and 1 save a checkpoint together with all ranks; 2 and 3 are in their next step, each in a group with one of the two."""
    groups = tuple(new_group(*members, name=str(name)) for name, members in enumerate(((0, 2), (1, 3)), 1))
    past = {r: did(times=9, at="train.py:7 step", group=str(1 + r % 2)) for r in range(4)}
    if not is_usual:
        past = {r: did("barrier", times=2, at="train.py:3 main") for r in range(4)}
    evidence = job(
        *[waiting(r, "gather_object", "train.py:9 save", after=past[r], groups=groups) for r in (0, 1)],
        *[waiting(r, "all_reduce", "train.py:7 step", group=str(1 + r % 2), after=past[r], groups=groups) for r in (2, 3)],
    )

    found = root(evidence)

    if is_usual:
        expect(found, "RW208", [0, 1], "only ranks 0, 1 called gather_object", certain=False, at="train.py:9")
    else:
        assert found.code == "RW218"


def test_a_call_that_the_other_rank_has_passed_for_good_is_no_matter_of_order() -> None:
    source = (
        "def load():\n    epochs(pg)\n    if own(rank):\n        barrier(pg)\n\ndef main():\n    load()\n    for x in y:\n        step(x)\n"
    )
    groups = (new_group(0, 1, name="1"),)
    past = did(at=("train.py:2 load", "train.py:7 main"), group="1")
    evidence = job(
        waiting(0, "barrier", ("train.py:4 load", "train.py:7 main"), group="1", after=past, groups=groups),
        waiting(1, "broadcast", "train.py:9 main", after=past, groups=groups),
        sources={"train.py": source},
    )

    expect(root(evidence), "RW201", [1], "only rank 0 called barrier", "own(rank)", certain=False, at="train.py:3")


def test_rw218_a_circle_of_three() -> None:
    evidence = job(*[waiting(r, group=str(r + 1), at=f"grid.py:{r + 5} step", groups=ROWS) for r in range(3)])

    expect(root(evidence), "RW218", [0, 1, 2], "different groups")


def test_rw218_beside_a_rank_that_only_waits() -> None:
    groups = (*ROWS, new_group(0, 1, 2, 3, name="4"))
    evidence = job(*[waiting(r, group=str(r + 1), groups=groups) for r in range(3)], waiting(3, group="4", groups=groups))

    expect(root(evidence), "RW218", [0, 1, 2], "different groups")


def test_rw218_even_if_one_of_them_also_waits_for_a_rank_at_work() -> None:
    groups = (new_group(0, 1, 2, name="1"), new_group(0, 2, name="2"), new_group(1, 3, name="3"))
    evidence = job(
        waiting(0, group="1", groups=groups),
        waiting(1, group="3", groups=groups),
        waiting(2, group="2", groups=groups),
        busy(3, groups=groups),
    )

    expect(root(evidence), "RW218", [0, 2], "different groups")


# -- on a GPU's stream: the calls have returned, and only counts and sizes tell what does not fit ----------------------------

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
