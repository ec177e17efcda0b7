"""Passes over the data: what a pass that is still open has given, with other passes begun after it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwise.diagnose.passes import passes_of, shorter_pass
from rankwise.evidence.records import Call, RankEvidence
from tests.diagnose.jobs import rank, stack_of

TRAIN, EVALUATE = stack_of("train.py:9 fit"), stack_of("train.py:30 evaluate")


def start(at=TRAIN, *, fetched: int) -> Call:
    return Call("pass_start", 0, 0, at, peer=fetched)


def end(at=TRAIN, *, batches: int) -> Call:
    return Call("pass_end", 0, 0, at, peer=batches)


def with_passes(*calls: Call, fetched: int) -> RankEvidence:
    return replace(rank(0, []), calls=calls, counts={"next_batch": fetched})


@pytest.mark.parametrize(
    ("calls", "fetched", "batches"),
    [
        ((start(fetched=0),), 7, [7]),
        ((start(fetched=0), start(EVALUATE, fetched=10)), 15, [10, 5]),
        ((start(fetched=0), start(EVALUATE, fetched=4), end(EVALUATE, batches=3)), 9, [6, 3]),
        ((start(fetched=0), end(batches=4), start(fetched=4)), 6, [4, 2]),
    ],
    ids=["one", "left open for an evaluation", "around an evaluation that ended", "one after the other"],
)
def test_batches_of_a_pass_are_its_own(calls: tuple[Call, ...], fetched: int, batches: list[int]) -> None:
    assert [one.batches for one in passes_of(with_passes(*calls, fetched=fetched))] == batches


def test_an_evaluation_of_one_rank_makes_the_others_pass_no_shorter() -> None:
    evaluates = with_passes(start(fetched=0), start(EVALUATE, fetched=10), fetched=20)
    trains_on = with_passes(start(fetched=0), end(batches=10), start(fetched=10), fetched=11)

    assert shorter_pass(trains_on, evaluates) is None
