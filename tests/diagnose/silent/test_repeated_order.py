"""The same order in two epochs: a fault where the sampler shuffles or waits for set_epoch, and both passes train."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rankwise.diagnose.silent.repeated_order import find
from rankwise.evidence.audit import Audit, BatchSeen, Drawn, PassBegun, PassEnded
from tests.diagnose.silent.audits import audited, lines

SHUFFLED = [[3, 1, 4, 1], [5, 9, 2, 6]]
SET_EPOCH = PassBegun(1, 0, 20, 5, "DistributedSampler", True, 0, True, True, 64, False, 0, 0)
RANDOM = replace(SET_EPOCH, sampler="RandomSampler", epoch=None, has_epoch=False, is_distributed=False)


def epochs(first: list[list[int]], second: list[list[int]], begun: PassBegun = SET_EPOCH, backwards: int = 4, **second_begun: Any) -> Audit:
    """A rank that drew these batches in two epochs."""
    passes = (begun, replace(begun, n=1, site=21, **second_begun))
    drawn = [
        Drawn(1, p, n, hash(tuple(ids)), tuple(ids), len(ids)) for p, batches in enumerate((first, second)) for n, ids in enumerate(batches)
    ]
    ends = [PassEnded(1, p, True, 2, 8, hash(str(batches)), backwards, 0) for p, batches in enumerate((first, second))]
    return Audit(passes=passes, drawn=tuple(drawn), pass_ends=tuple(ends))


def test_a_sampler_without_set_epoch_repeats_itself() -> None:
    found = find(audited(epochs(SHUFFLED, SHUFFLED), epochs(SHUFFLED, SHUFFLED)))

    assert (found.code, found.severity, found.certain) == ("RW751", "warning", True)
    assert found.summary == "every epoch has the same order of samples: set_epoch is never called"
    assert "begin with samples 3, 1, 4, 1" in found.why and lines(found) == {0: 21, 1: 21}


def test_a_generator_made_anew_repeats_itself() -> None:
    found = find(audited(epochs(SHUFFLED, SHUFFLED, RANDOM)))

    assert "the shuffling repeats itself" in found.summary and "starts from the same seed" in found.why


def test_a_rank_that_alone_repeats_itself_is_named() -> None:
    found = find(audited(epochs(SHUFFLED, SHUFFLED[::-1]), epochs(SHUFFLED, SHUFFLED)))

    assert "on rank 1 only, so that the ranks' parts of the data overlap" in found.summary and lines(found) == {1: 21}


SORTED = [[1, 2, 3, 4], [5, 6, 7, 8]]


@pytest.mark.parametrize(
    "audit",
    [
        epochs(SHUFFLED, SHUFFLED[::-1]),
        epochs(SHUFFLED, [SHUFFLED[0], [6, 2, 9, 5]]),
        epochs(SHUFFLED, SHUFFLED, backwards=0),
        epochs(SHUFFLED, SHUFFLED, epoch=1),
        epochs(SORTED, SORTED),
        epochs(SHUFFLED, SHUFFLED, replace(RANDOM, sampler="Curriculum")),
        epochs(SHUFFLED, SHUFFLED, replace(RANDOM, shuffles=False)),
        epochs([[3, 1, 4], [5, 9, 2, 6]], [[3, 1, 4], [5, 9, 2, 6]]),
    ],
    ids=[
        "another order",
        "another second batch",
        "evaluation",
        "set_epoch was called",
        "not shuffled",
        "the user's own",
        "in order",
        "7 samples",
    ],
)
def test_what_is_no_repetition(audit: Audit) -> None:
    assert find(audited(audit, audit)) is None


def test_one_batch_tells_only_once_the_epoch_is_over() -> None:
    whole = epochs([SHUFFLED[0] + SHUFFLED[1]], [SHUFFLED[0] + SHUFFLED[1]])

    assert find(audited(whole)) is not None
    assert find(audited(replace(whole, pass_ends=(whole.pass_ends[0], replace(whole.pass_ends[1], whole=False))))) is None


def test_two_batches_tell_before_the_epoch_is_over() -> None:
    audit = epochs(SHUFFLED, SHUFFLED)
    running = replace(audit, pass_ends=audit.pass_ends[:1], batches=(BatchSeen(1, 1, 0, (1,), (), 8, 4, 1),))

    assert find(audited(running)) is not None
    assert find(audited(replace(running, drawn=(*running.drawn[:3], replace(running.drawn[3], sum=1))))) is None


def test_both_epochs_have_to_be_training() -> None:
    audit = epochs(SHUFFLED, SHUFFLED)
    ends = audit.pass_ends

    assert find(audited(replace(audit, pass_ends=(replace(ends[0], backwards=0), ends[1])))) is None
    assert find(audited(replace(audit, pass_ends=(ends[0], replace(ends[1], backwards=0))))) is None


def test_epochs_that_differ_after_the_batches_that_were_noted_are_not_the_same() -> None:
    audit = epochs(SHUFFLED, SHUFFLED)

    assert find(audited(replace(audit, pass_ends=(audit.pass_ends[0], replace(audit.pass_ends[1], sum=1))))) is None
