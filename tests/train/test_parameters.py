"""What happens to parameters: which ones one backward reaches, and what was changed since DDP wrapped them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from rankwise.errors import TrainError
from rankwise.train.parameters import DryRun, ParameterState, check_optimizer, check_unchanged, dry_run, find_change, listed, remember

CPU = torch.device("cpu")
ONE, OTHER = (ParameterState(number, CPU, torch.float32, True) for number in (1, 2))


@pytest.mark.parametrize(
    ("before", "now", "code", "said"),
    [
        ({"a": ONE}, {"a": ONE, "b": OTHER}, "RW217", "added: b"),
        ({"a": ONE, "b": OTHER}, {"a": ONE}, "RW217", "removed: b"),
        ({"a": ONE}, {"a": OTHER}, "RW217", "replaced: a"),
        ({"a": ONE, "b": OTHER}, {"b": ONE, "c": ONE}, "RW217", "added: c; removed: a; replaced: b"),
        ({"a": ONE}, {"a": ONE._replace(device=torch.device("meta"))}, "RW701", "a was on cpu when DDP wrapped the model and is on meta"),
        ({"a": ONE}, {"a": ONE._replace(requires_grad=False)}, "RW217", "frozen or thawed: a"),
        ({"a": ONE}, {"a": ONE._replace(dtype=torch.float16)}, "RW217", "of another dtype: a (torch.float16)"),
    ],
)
def test_what_was_changed_after_wrapping_is_told(before: Any, now: Any, code: str, said: str) -> None:
    finding = find_change(before, now)

    assert finding is not None and finding.code == code
    assert said in finding.summary


def test_what_is_as_it_was_is_no_finding() -> None:
    assert find_change({"a": ONE, "b": OTHER}, {"b": OTHER, "a": ONE}) is None


def test_a_model_is_compared_with_what_was_remembered_of_it() -> None:
    known, unknown = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))
    remember(known)
    check_unchanged(known)

    for model in (known, unknown):
        model[0] = nn.Linear(2, 2)

    check_unchanged(unknown)
    with pytest.raises(TrainError, match=r"replaced: 0\.weight, 0\.bias"):
        check_unchanged(known)


@pytest.mark.parametrize(("count", "text"), [(0, ""), (1, "0"), (5, "0, 1, 2, 3, 4"), (6, "0, 1, 2, 3, 4 and 1 more")])
def test_a_list_is_short_however_many_there_are(count: int, text: str) -> None:
    assert listed([str(number) for number in range(count)]) == text


def test_an_optimizer_of_another_models_parameters_is_told() -> None:
    model, other = nn.Linear(2, 3), nn.Linear(2, 3)

    def holding(*parameters: nn.Parameter) -> Any:
        return SimpleNamespace(param_groups=[{"params": [parameter]} for parameter in parameters])

    check_optimizer(holding(model.weight, model.bias), model)
    check_optimizer(holding(model.bias), model)
    with pytest.raises(TrainError, match=r"holds 1 of 2 parameters that are not the model's: shapes \(3,\)"):
        check_optimizer(holding(model.weight, other.bias), model)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.frozen = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)
        self.norm = nn.BatchNorm1d(2)
        self.drop = nn.Dropout()

    def forward(self, x: torch.Tensor, again: bool = False) -> dict[str, torch.Tensor]:
        x = self.drop(self.norm(self.frozen(x)))
        return {"y": self.used(x + self.used(x)) if again else self.used(x)}


UNUSED = DryRun(("unused.weight", "unused.bias"))


@pytest.mark.parametrize(
    "sample",
    [
        torch.ones(3, 2),
        (torch.ones(3, 2),),
        [torch.ones(3, 2)],
        {"x": torch.ones(3, 2), "again": True},
        lambda model: model(torch.ones(3, 2))["y"].mean(),
    ],
)
def test_parameters_that_no_backward_reaches_are_found(sample: Any) -> None:
    assert dry_run(Net(), sample, CPU) == UNUSED


def test_a_model_that_gives_nothing_to_learn_from_uses_none() -> None:
    assert dry_run(nn.Linear(1, 1), lambda model: torch.zeros(1), CPU).unused == ("weight", "bias")


def test_a_parameter_that_gets_its_gradient_twice_is_found() -> None:
    def twice(model: nn.Module) -> torch.Tensor:
        """As with re-entrant activation checkpointing, which has a backward within the backward."""
        model(torch.ones(3, 2)).sum().backward()
        return model(torch.ones(3, 2))

    assert dry_run(nn.Linear(2, 2), twice, CPU) == DryRun(repeated=("weight", "bias"))


def test_the_model_is_left_as_it_was() -> None:
    model = Net()
    model.used.weight.grad = gradient = torch.ones(2, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state, mean = torch.get_rng_state(), model.norm.running_mean

    with torch.no_grad():
        dry_run(model, torch.ones(3, 2), CPU)

    assert model.used.weight.grad is gradient and torch.equal(gradient, torch.ones(2, 2))
    assert model.used.bias.grad is None
    assert model.norm.running_mean is mean
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_lazy_parameters_get_their_shape() -> None:
    assert dry_run(nn.Sequential(nn.LazyLinear(2)), torch.ones(3, 4), CPU) == DryRun()
