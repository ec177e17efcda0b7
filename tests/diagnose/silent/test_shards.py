"""The ranks' shares of the data: their sizes, and whether they are shares at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rankwise.diagnose.silent.shards import find_padded, find_uneven, find_whole_on_each
from rankwise.evidence.audit import Audit, BatchSeen, PassBegun, PassEnded
from tests.diagnose.silent.audits import DDP, audited, lines

BEGUN = PassBegun(1, 0, 20, 5, "DistributedSampler", True, 0, True, True, 64, False, 0, 0, data_sum=99)
ENDED = PassEnded(1, 0, True, 8, 32, 0, 8, 0)


def drew(begun: PassBegun = BEGUN, numel: int | None = None, wrapped: bool = True, num_seen: int = 6, **ended: Any) -> Audit:
    """A rank that went once through its data."""
    batches = () if numel is None else tuple(BatchSeen(1, 0, n, (n,), (), numel, 4, n + 1) for n in range(num_seen))
    return Audit(wrappers=(DDP,) * wrapped, passes=(begun,), batches=batches, pass_ends=(replace(ENDED, **ended),))


# -- uneven -------------------------------------------------------------------------------------------------------------------


def test_the_rank_with_the_longest_shard_is_named() -> None:
    found = find_uneven(audited(drew(batches=8), drew(batches=10)))

    assert (found.code, found.severity, found.certain) == ("RW752", "info", True)
    assert "rank 1 has 10 batches, another has 8" in found.summary and lines(found) == {1: 5}


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (drew(batches=8), drew(batches=9)),
        (drew(batches=3), drew(batches=4)),  # a quarter more, but one batch
        (drew(batches=9), drew(batches=11)),  # two batches, but not a quarter more
        (drew(batches=0), drew(batches=8)),
        (drew(batches=4, whole=False), drew(batches=8)),
        (drew(batches=4, backwards=0), drew(batches=8, backwards=0)),
    ],
    ids=["about alike", "one batch", "less than a quarter", "none at all", "not at its end", "evaluation"],
)
def test_shards_that_are_even_enough(a: Audit, b: Audit) -> None:
    assert find_uneven(audited(a, b)) is None


@pytest.mark.parametrize(("numel", "is_found"), [(160, True), (159, False)])
def test_batches_with_much_more_in_them_are_uneven_too(numel: int, is_found: bool) -> None:
    found = find_uneven(audited(drew(numel=100), drew(numel=numel)))

    assert (found is not None) == is_found
    if found is not None:
        assert "rank 1's batches are 1.6 times as large" in found.summary and lines(found) == {1: 5}


def test_their_size_is_told_from_six_batches_on() -> None:
    assert find_uneven(audited(drew(numel=100, num_seen=5), drew(numel=300, num_seen=5))) is None


# -- the whole dataset on each rank -------------------------------------------------------------------------------------------

RANDOM = replace(BEGUN, sampler="RandomSampler", is_distributed=False, size=32)


def test_ranks_that_each_draw_all_samples_are_found() -> None:
    found = find_whole_on_each(audited(drew(RANDOM), drew(RANDOM)))

    assert (found.code, found.certain) == ("RW756", True)
    assert "each rank draws all 32 samples" in found.summary and lines(found) == {0: 5, 1: 5}


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (drew(replace(RANDOM, data_sum=1)), drew(RANDOM)),
        (drew(replace(RANDOM, data_sum=None)), drew(replace(RANDOM, data_sum=None))),
        (drew(RANDOM, samples=16), drew(RANDOM, samples=16)),
        (drew(RANDOM, repeats=2), drew(RANDOM)),
        (drew(RANDOM, backwards=0), drew(RANDOM)),
        (drew(RANDOM, whole=False), drew(RANDOM)),
        (drew(replace(RANDOM, sampler="Weighted")), drew(RANDOM)),
        (drew(replace(RANDOM, size=None)), drew(replace(RANDOM, size=None))),
    ],
    ids=["other data", "unknown data", "shares", "with replacement", "evaluation", "not at its end", "a sampler of the user's", "no size"],
)
def test_what_is_not_the_whole_dataset_on_each(a: Audit, b: Audit) -> None:
    assert find_whole_on_each(audited(a, b)) is None


# -- padded evaluation --------------------------------------------------------------------------------------------------------

EVALUATION = replace(BEGUN, size=63)


@pytest.mark.parametrize(("samples", "says"), [(32, "counts 1 of 63 samples twice"), (31, "leaves out 1 of 63 samples")])
def test_an_evaluation_that_does_not_divide_evenly_is_noted(samples: int, says: str) -> None:
    one = drew(EVALUATION, samples=samples, backwards=0)

    found = find_padded(audited(one, one))

    assert (found.code, found.severity, found.certain) == ("RW753", "info", True)
    assert says in found.summary and lines(found) == {0: 5, 1: 5}


@pytest.mark.parametrize(
    "audit",
    [
        drew(BEGUN, backwards=0),
        drew(EVALUATION),
        drew(EVALUATION, backwards=0, whole=False),
        drew(replace(EVALUATION, is_distributed=False), backwards=0),
        drew(replace(EVALUATION, size=None), backwards=0),
    ],
    ids=["divides evenly", "training", "not at its end", "not a DistributedSampler", "no size"],
)
def test_what_is_no_padded_evaluation(audit: Audit) -> None:
    assert find_padded(audited(audit, audit)) is None


def test_an_evaluation_that_draws_each_sample_once_is_right() -> None:
    assert find_padded(audited(drew(EVALUATION, samples=32, backwards=0), drew(EVALUATION, samples=31, backwards=0))) is None
