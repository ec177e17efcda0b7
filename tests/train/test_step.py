"""The step: where gradients are exchanged, clipped, refused and dropped."""

from __future__ import annotations

import pytest

from tests.train.farm import Farm


@pytest.mark.parametrize(("accumulate", "expected"), [(1, [1] * 7), (3, [0, 0, 1, 0, 0, 1, 1]), (4, [0, 0, 0, 1, 0, 0, 1])])
def test_gradients_are_exchanged_once_in_each_window_also_the_short_last_one(farm: Farm, accumulate: int, expected: list[int]) -> None:
    assert farm.run("collectives_in_windows", 2, accumulate=accumulate) == [expected] * 2


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_one_ranks_infinite_gradients_make_all_ranks_skip_the_same_step(farm: Farm, precision: str) -> None:
    first, second = farm.run("train_with_a_poisoned_batch", 2, precision=precision)

    assert first == second
    assert first["stepped"] == [True, False, True, True]
    assert (first["skipped"], first["count"]) == (1, 3)
    assert first["lr"] == pytest.approx(3e-3 / 8), "the scheduler moves with the optimizer only"


def test_fp16_lowers_its_scale_until_the_gradients_are_finite(farm: Farm) -> None:
    first, second = farm.run("train_with_a_poisoned_batch", 2, precision="fp16")

    assert first == second
    assert first["stepped"][1] is False and first["stepped"][3]


def test_gradients_that_are_never_finite_end_the_training(farm: Farm) -> None:
    outcomes = farm.ranks("train_with_infinite_losses", 2)

    assert [outcome.code for outcome in outcomes] == ["RW704", "RW704"]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_what_the_optimizer_is_given_is_unscaled_and_clipped(farm: Farm, precision: str) -> None:
    norms = farm.run("clipped_norms", 2, precision=precision)[0]

    assert norms and all(norm == pytest.approx(0.01, rel=1e-3) for norm in norms)


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("bare model", "RW714", "2 ranks"),
        ("other parameters", "RW702", "4 of 4"),
        ("with outside", "RW705", "outside"),
        ("batch left out", "RW705", "left out"),
        ("backward twice", "RW705", "without a batch"),
        ("save inside", "RW705", "inside a window"),
        ("no mean", "RW001", "shape"),
        ("no gradient", "RW001", "no gradient"),
        ("no tensor", "RW001", "is a float"),
        ("no optimizer", "RW001", "is a NoneType"),
        ("clipped to nothing", "RW001", "clip_norm=0"),
    ],
)
def test_misuse_is_refused_on_every_rank(farm: Farm, how: str, code: str, said: str) -> None:
    outcomes = farm.ranks("misuse_step", 2, how=how)

    assert [outcome.code for outcome in outcomes] == [code, code], outcomes
    assert said in outcomes[0].error


def test_a_rank_without_any_batch_is_named(farm: Farm) -> None:
    outcomes = farm.ranks("train_over_plain_dataloader", 2, lengths=[6, 0])

    assert outcomes[1].code == "RW712"
    assert "rank 1" in outcomes[1].error
