"""The loss of a backward: its value, its divisor, and the first that was not finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rankwise.probe.audit import loss, record


@pytest.fixture(autouse=True)
def written(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(record, "write", lambda kind, **facts: lines.append({"a": kind, **facts}))
    monkeypatch.setattr(loss.sites, "number_of_caller", lambda frame: 7)
    for name, value in {
        "_last": None,
        "_sum": 0.0,
        "_count": 0,
        "_divisor": None,
        "_root": "",
        "_mean_reduced": False,
        "_first_bad": [],
    }.items():
        monkeypatch.setattr(loss, name, value)
    return lines


def made(how: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    one = how(torch.tensor([1.0, 3.0], requires_grad=True))
    assert isinstance(one, torch.Tensor)
    return one


@pytest.mark.parametrize(
    ("how", "divisor", "is_mean"),
    [
        (lambda x: x.mean(), None, True),
        (lambda x: x.mean() / 4, 4.0, True),
        (lambda x: x.mean() * 0.25, 4.0, True),
        (lambda x: x.mean() / 2 / 4, 8.0, True),
        (lambda x: x.sum() / 4, 4.0, False),
        (lambda x: torch.nn.functional.mse_loss(x, torch.zeros(2)), None, True),
        (lambda x: torch.nn.functional.mse_loss(x, torch.zeros(2), reduction="sum"), None, False),
    ],
    ids=["mean", "divided", "multiplied", "twice", "sum", "a mean of torch's", "a sum of torch's"],
)
def test_the_divisor_and_the_kind_of_a_loss_are_read_from_its_graph(
    how: Callable[[torch.Tensor], Any], divisor: float | None, is_mean: bool
) -> None:
    loss.take(made(how), 0, None)

    facts = loss.facts()
    assert (facts["divisor"], facts["is_mean"]) == (divisor, is_mean) and facts["root"]


def test_losses_are_averaged_and_the_last_one_is_known() -> None:
    assert loss.last() is None and loss.mean() == (0.0, 0)
    for factor in (1, 2):
        loss.take((made(lambda x, factor=factor: x.mean() * factor),), 0, None)

    assert loss.last() == 4.0 and loss.mean() == (3.0, 2)


def test_the_first_loss_that_is_not_finite_is_noted_once_and_counts_for_nothing(written: list[dict[str, Any]]) -> None:
    for n in (4, 5):
        loss.take(made(lambda x: x.mean() * float("nan")), n, None)

    assert written == [{"a": "bad_loss", "n": 4, "site": 7, "value": "nan"}]
    assert loss.last() is None and loss.mean() == (0.0, 0)


def test_a_backward_from_many_numbers_has_no_loss() -> None:
    loss.take(made(lambda x: x * 2), 0, None)
    loss.take((made(lambda x: x.mean()),) * 2, 0, None)
    loss.take(None, 0, None)

    assert loss.last() is None
