"""Ranks that disagree: what is told, who is blamed, and what is a disagreement only at first sight."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwise.diagnose import diagnose
from rankwise.evidence.records import Call
from tests.diagnose.jobs import (
    FIVE,
    NOW_NS,
    SECOND,
    Slot,
    alarms,
    busy,
    did,
    elsewhere,
    expect,
    finished,
    gradients,
    in_backward,
    in_call,
    in_forward,
    job,
    main_thread,
    new_group,
    rank,
    returned,
    root,
    stack_of,
    waiting,
)

# -- healthy look-alikes ------------------------------------------------------------------------------------------------------

EVEN, ODD = new_group(0, 2, name="1"), new_group(1, 3, name="2")
LOOK_ALIKES = {
    "one rank is merely busy": [waiting(0), waiting(1), busy(2), waiting(3)],
    "one rank is behind and at work": [waiting(0), waiting(1), busy(2, after=did(times=3)), waiting(3)],
    "different batch sizes": [busy(r, after=[*gradients(5), *did("all_gather", sizes=(4,))]) for r in range(4)],
    "uneven splits": [busy(r, after=[*FIVE, Slot("all_to_all_single", sizes=(r + 1,))]) for r in range(4)],
    "scatter from a root": [busy(r, after=[*FIVE, Slot("scatter", sizes=(8 if r else 32,), peer=0)]) for r in range(4)],
    "object collectives of uneven size": [
        # sizes are exchanged first; then everybody pads to the largest
        busy(r, after=[*FIVE, Slot("all_gather", sizes=(1,), dtype="int64"), Slot("all_gather", sizes=(90,), dtype="uint8")])
        for r in range(4)
    ],
    "a monitored barrier that still waits for a busy rank": [*[in_call(r, "monitored_barrier") for r in range(3)], busy(3)],
    "groups with sequences of their own": [
        waiting(0, group="1", groups=(EVEN, ODD), after=[*FIVE, *did(times=9, group="1")]),
        waiting(1, "broadcast", group="2", peer=1, groups=(EVEN, ODD), after=[*FIVE, *did("barrier", times=2, group="2")]),
        busy(2, groups=(EVEN, ODD), after=[*FIVE, *did(times=9, group="1")]),
        busy(3, groups=(EVEN, ODD), after=[*did("barrier", times=2, group="2"), *FIVE]),
    ],
    "one collective behind, in one that all have entered": [
        waiting(0, "barrier", "train.py:12 main", after=[*FIVE, *did("broadcast", peer=0)], sizes=()),
        *[waiting(r, "broadcast", "train.py:11 main", peer=0) for r in (1, 2, 3)],
    ],
    "one collective behind, as far as the calls tell": [
        waiting(0, "barrier", "train.py:12 main", after=[*FIVE, *did("broadcast", peer=0)], sizes=(), recorder=False),
        *[waiting(r, "broadcast", "train.py:11 main", peer=0, recorder=False) for r in (1, 2, 3)],
    ],
    "one collective behind, and one rank without a recorder": [
        waiting(0, "barrier", "train.py:12 main", after=[*FIVE, *did("broadcast", peer=0)], sizes=(), recorder=False),
        *[waiting(r, "broadcast", "train.py:11 main", peer=0) for r in (1, 2, 3)],
    ],
    "one behind at the same line": [waiting(0, after=did(times=6)), *[waiting(r, after=FIVE) for r in (1, 2, 3)]],
    "one behind, across a step of DDP": [
        in_forward(0, after=gradients(6)),
        *[in_backward(r, after=gradients(5)) for r in (1, 2, 3)],
    ],
    "queued work on every rank": [returned(busy(r, after=[*FIVE, *did(done=False, times=3)])) for r in range(4)],
    "queued NCCL work on every rank": [returned(busy(r, after=[*FIVE, *did(done=False, times=3)], backend="nccl")) for r in range(4)],
    "queued NCCL work, one rank is far ahead": [
        returned(busy(r, after=[*FIVE, *did(done=False, times=9 if r == 1 else 2)], backend="nccl")) for r in range(4)
    ],
    "queued NCCL work, one rank waits for the GPU": [
        returned(elsewhere(0, "train.py:14 log", after=[*FIVE, *did(done=False, times=2)], backend="nccl")),
        *[returned(busy(r, after=[*FIVE, *did(done=False)], backend="nccl")) for r in (1, 2, 3)],
    ],
    "queued NCCL work, one rank has not started it yet": [
        *[returned(elsewhere(r, "train.py:14 log", after=[*FIVE, *did(done=False)], backend="nccl")) for r in (0, 1, 2)],
        busy(3, backend="nccl"),
    ],
    "Join: a finished rank shadows the others' collectives": [
        elsewhere(0, "train.py:20 main", inside=["/v/site-packages/torch/distributed/algorithms/join.py:284 __exit__"], after=gradients(9)),
        *[busy(r, after=gradients(9)) for r in (1, 2, 3)],
    ],
    "work in a helper's own group": [
        waiting(0, group="1", groups=(EVEN,)),
        busy(1, groups=(EVEN,)),
        busy(2, groups=(EVEN,)),
        busy(3, groups=(EVEN,)),
    ],
    "the same number of elements in another shape": [busy(r, after=[*FIVE, Slot(sizes=(4, 2) if r else (8,))]) for r in range(4)],
    "other lines of the same collective": [waiting(r, at=f"train.py:{30 + r} main") if r else busy(0) for r in range(4)],
    "one rank closes the group, the others have left without": [in_call(0, "destroy_process_group"), finished(1), finished(2)],
    "a rank that is no member has finished": [
        waiting(0, group="1", groups=(EVEN,)),
        finished(1, groups=(EVEN,)),
        busy(2, groups=(EVEN,)),
        finished(3, groups=(EVEN,)),
    ],
    "two ranks have left, together with all others": [finished(r) for r in range(4)],
}


@pytest.mark.parametrize("kind", LOOK_ALIKES)
def test_healthy_look_alikes_raise_no_alarm(kind: str) -> None:
    assert alarms(job(*LOOK_ALIKES[kind])) == []


def test_ranks_on_a_node_that_was_not_seen_may_be_what_the_others_wait_for() -> None:
    found = root(job(*[waiting(r) for r in range(4)], world_size=8))

    assert not found.certain and not found.deadlock
    assert "all ranks are in the same" not in found.summary
    assert "ranks 4-7" in found.why, "who was not seen"


def test_a_node_that_was_lost_is_named() -> None:
    found = root(job(waiting(0), waiting(1), world_size=4, lost_hosts=("node-b",)))

    assert not found.certain and not found.deadlock
    assert "ranks 2, 3" in found.summary and "node-b" in f"{found.summary} {found.why}"


def test_ranks_that_have_all_arrived_are_not_told_apart() -> None:
    assert [finding.code for finding in diagnose(job(*[waiting(r) for r in range(4)])) if finding.code.startswith("RW2")] == []


def test_once_the_ring_has_overflowed_the_counts_still_tell_who_is_missing() -> None:
    many = {"all_reduce": 90_000, "barrier": 1}
    evidence = job(
        *[waiting(r, "barrier", "train.py:12 main", sizes=(), recorder=False, counts=many) for r in (0, 1, 2)],
        waiting(3, "all_reduce", "train.py:10 main", recorder=False, counts={"all_reduce": 90_001}),
    )

    assert {place.rank for place in root(evidence).culprits} == {3}


def test_a_rank_without_recorder_among_others_with_one_is_not_taken_for_absent() -> None:
    evidence = job(waiting(0), waiting(1), waiting(2, recorder=False), busy(3))

    (found, *_) = diagnose(evidence)

    assert {place.rank for place in found.culprits} == {3}


def test_calls_of_the_past_do_not_matter_to_a_wait() -> None:
    old = Call("recv", NOW_NS - 50 * SECOND, NOW_NS - 49 * SECOND, stack_of("train.py:2 main"), peer=3)
    ranks = [waiting(0), waiting(1), waiting(2), busy(3)]

    assert alarms(job(*[replace(e, calls=(old, *e.calls)) for e in ranks])) == []


def test_a_rank_beyond_the_world_is_not_needed() -> None:
    assert alarms(job(rank(0), busy(1), world_size=2)) == []


def test_rw212_of_a_batch_of_transfers_the_one_nobody_answers_is_named() -> None:
    def batch(number: int, *transfers: tuple[str, int]) -> tuple[Call, ...]:
        began = NOW_NS - 30 * SECOND
        frames = stack_of("train.py:9 exchange")
        return tuple(Call(op, began + i, began + i + 1, frames, peer=peer) for i, (op, peer) in enumerate(transfers))

    barrier = {"at": "train.py:12 main", "sizes": ()}
    first = waiting(0, "barrier", after=[], **barrier)
    last = waiting(2, "barrier", after=[], **barrier)
    evidence = job(
        replace(first, calls=(*batch(0, ("irecv", 1), ("isend", 1)), *first.calls)),
        rank(
            1,
            [],
            calls=batch(1, ("irecv", 0), ("isend", 0), ("irecv", 2), ("isend", 2)),
            threads=main_thread("train.py:10 exchange", "train.py:11 main"),
        ),
        replace(last, calls=(*batch(2, ("irecv", 1)), *last.calls)),
        world_size=3,
    )

    found = root(evidence)

    expect(found, "RW212", [1, 2], "irecv from rank 2", "train.py:10", certain=False)
    assert "rank 2 has called send to rank 1 0 times" in found.why


def test_rw212_a_send_and_a_recv_with_different_tags_do_not_meet() -> None:
    evidence = job(in_call(0, "recv", peer=1), in_call(1, "send", peer=0))
    sender = evidence.ranks[1]
    tagged = replace(sender, calls=(*sender.calls[:-1], replace(sender.calls[-1], reduce_op="3")))

    assert not alarms(evidence)  # they have met: the bytes are on their way
    found = root(replace(evidence, ranks={**evidence.ranks, 1: tagged}))

    expect(found, "RW212", [0, 1], "tag 0", "tag 3")
