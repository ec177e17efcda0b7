"""Where the models of two ranks differ, and where their gradients do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rankwise.train.agreement import digest_of, find_different_gradients, find_different_models

NOTES = {"many": [0, 1, 3], "few": [2]}
W, B = ["w", [2, 2], "float32"], ["b", [2], "float32"]


@pytest.mark.parametrize(
    ("theirs", "own", "said"),
    [
        ([W, B], [W, ["b", [3], "float32"]], "number 2 is b (2,) float32 on rank 0 and b (3,) float32 on rank 2"),
        ([W, B], [["w", [2, 2], "float16"], B], "number 1 is w (2, 2) float32 on rank 0 and w (2, 2) float16 on rank 2"),
        ([W, B], [W], "number 2 is b (2,) float32 on rank 0 and nothing on rank 2; rank 0 has 2 parameters and buffers, rank 2 1"),
        ([W], [B, W], "number 1 is w (2, 2) float32 on rank 0 and b (2,) float32 on rank 2; rank 0 has 1"),
    ],
)
def test_the_first_parameter_that_is_not_the_same_is_shown_from_both_sides(theirs: Any, own: Any, said: str) -> None:
    finding = find_different_models(0, theirs, 2, own, NOTES)

    assert finding.code == "RW216"
    assert said in finding.summary
    assert finding.why.startswith("alike are ") and finding.why.endswith("; rank 2")


@pytest.mark.parametrize(
    ("theirs", "own", "code", "said"),
    [
        ([["a", "1"], ["b", "1"]], [["a", "1"], ["b", "2"]], "RW124", "that of b is not the same on rank 0 and rank 2"),
        ([["a", "1"], ["b", "1"]], [["a", "2"], ["b", None]], "RW215", "b has a gradient on rank 0 and none on rank 2"),
        ([["a", "1"], ["b", None]], [["a", "2"], ["b", "1"]], "RW215", "b has a gradient on rank 2 and none on rank 0"),
        ([["a", None], ["b", "1"]], [["a", None], ["b", "2"]], "RW124", "that of b is not the same"),
    ],
)
def test_a_gradient_that_is_missing_explains_more_than_one_that_differs(theirs: Any, own: Any, code: str, said: str) -> None:
    finding = find_different_gradients(0, theirs, 2, own, NOTES)

    assert finding.code == code
    assert said in finding.summary


def test_the_largest_group_comes_first_and_eight_are_enough() -> None:
    groups = {str(rank): [rank] for rank in range(1, 10)} | {"most": [10, 11]}

    why = find_different_models(0, [W], 1, [B], groups).why

    assert why.count(";") == 7
    assert "10" in why.split(";")[0] and "11" in why.split(";")[0]


@pytest.mark.parametrize(
    "same",
    [torch.eye(3).to_sparse(), torch.ones(2, 3).t(), torch.ones(3, dtype=torch.bfloat16), torch.zeros(0), torch.tensor(1.0)],
)
def test_a_digest_is_of_the_bits(same: torch.Tensor) -> None:
    assert digest_of(same) == digest_of(same.clone())


def test_another_bit_is_another_digest() -> None:
    assert digest_of(torch.tensor([0.0])) != digest_of(torch.tensor([-0.0]))
    assert digest_of(torch.tensor([torch.nan])) == digest_of(torch.tensor([torch.nan]))
    assert digest_of(torch.arange(6.0).view(2, 3).t()) == digest_of(torch.arange(6.0).view(2, 3).t().contiguous())
