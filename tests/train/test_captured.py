"""A training's state in plain things: what is copied, what can be loaded again, and what a saved state does not fit."""

from __future__ import annotations

import io
import random
from collections import Counter, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rankwise.findings import Finding
from rankwise.train.captured import (
    check_plain,
    find_misfit,
    find_order_misfit,
    first_not_plain,
    on_cpu,
    plain_numbers,
    restore_rng,
    rng_state,
    same_weights,
    seed_rng,
)

PATH = Path("runs/a/step-00000004")


def loaded(state: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def draws() -> tuple[float, ...]:
    return torch.rand(()).item(), random.random(), random.gauss(0, 1), float(np.random.rand()), float(np.random.normal())


def test_generators_go_on_from_a_file_where_they_stood() -> None:
    outside = rng_state()
    draws()  # the half of a pair of normal numbers that numpy and random keep is part of it
    state = loaded(rng_state())
    expected = draws()

    restore_rng(state)

    assert draws() == expected
    restore_rng(outside)


def test_generators_seeded_with_other_numbers_are_others() -> None:
    outside, drawn = rng_state(), []
    for numbers in ((4, 0, 3), (4, 1, 3), (4, 0, 3)):
        seed_rng(*numbers)
        drawn.append(draws())
    restore_rng(outside)

    assert drawn[0] == drawn[2]
    assert not set(drawn[0]) & set(drawn[1])


@pytest.mark.parametrize("copy", [False, True])
def test_tied_tensors_stay_tied_and_a_part_leaves_the_rest_behind(copy: bool) -> None:
    weight = nn.Parameter(torch.ones(4, 4))
    state = on_cpu({"a": weight, "b": [weight.detach()], "part": torch.ones(1000)[:2]}, copy=copy)

    assert state["a"].data_ptr() == state["b"][0].data_ptr()
    assert (state["a"].data_ptr() == weight.data_ptr()) == (not copy)
    assert type(state["a"]) is torch.Tensor and not state["a"].requires_grad
    assert state["part"].untyped_storage().nbytes() == 8


Point = namedtuple("Point", "x y")


def test_numbers_of_numpy_become_pythons_in_containers_that_stay_what_they_are() -> None:
    model = nn.Linear(1, 1).state_dict()
    kept = {"rates": [np.float64(0.5)], "at": Point(np.int64(3), True), "counted": Counter([4, 4])}
    state = plain_numbers({**kept, "model": model, "array": (np.bool_(True), "x")})

    assert state["rates"] == [0.5] and type(state["rates"][0]) is float
    assert state["at"] == Point(3, True) and type(state["at"]) is Point and type(state["at"].x) is int
    assert state["array"] == (True, "x") and state["array"][0] is True
    assert list(loaded(state["counted"]).elements()) == [4, 4]
    assert state["model"]._metadata == model._metadata  # type: ignore[attr-defined]


class Strange:
    pass


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"model": {"w": torch.ones(1)}, "other": [1, {"deep": Strange()}]}, "state['other'][1]['deep'] is a Strange"),
        ({"at": Point(1, 2)}, "state['at'] is a Point"),
        ({"numbers": (1, 2.0, 3j, "x", b"x", None, True, torch.float32, torch.Size([2]))}, ""),
    ],
)
def test_the_first_thing_that_is_not_plain_is_shown_by_its_place(state: Any, where: str) -> None:
    assert first_not_plain(state) == where
    if not where:
        check_plain(state)


@pytest.mark.parametrize(
    "thing", [Strange(), torch.eye(2).to_sparse(), torch.empty(2, device="meta"), torch.nested.nested_tensor([torch.ones(1)])]
)
def test_what_could_not_be_loaded_again_is_refused_wherever_it_is(thing: Any) -> None:
    with pytest.raises(Exception, match=r"Strange|layout|meta|nested"):
        check_plain({"model": {"w": torch.ones(1)}, "other": [("x", thing)]})


ONE = {"w": torch.tensor([0.0, torch.nan]), "step": 3}


@pytest.mark.parametrize(
    ("other", "are_same"),
    [
        ({"w": torch.tensor([0.0, torch.nan]), "step": 4}, True),
        ({"w": torch.tensor([0.0, 9.0, torch.nan])[::2]}, True),
        ({"w": torch.tensor([-0.0, torch.nan])}, False),
        ({"w": torch.tensor([0.0, torch.nan], dtype=torch.float64)}, False),
        ({"w": torch.tensor([0.0, torch.nan]).view(torch.int32)}, False),  # the same bits of something else
        ({"w": torch.tensor([[0.0, torch.nan]])}, False),
        ({**ONE, "b": torch.zeros(1)}, False),
        ({}, False),
    ],
)
def test_weights_are_the_same_when_all_their_bits_are(other: dict[str, Any], are_same: bool) -> None:
    assert same_weights(ONE, other) == same_weights(other, ONE) == are_same


def test_a_conjugate_view_has_the_values_it_shows() -> None:
    one = torch.tensor([1 + 2j])

    assert not same_weights({"w": one}, {"w": one.conj()})
    assert same_weights({"w": torch.tensor([1 - 2j])}, {"w": one.conj()})


def optimizer_of(*sizes: int) -> torch.optim.Optimizer:
    """One with groups of so many parameters; made bare, because the first real one of a process imports torch's compiler."""
    made = object.__new__(torch.optim.SGD)
    made.param_groups = [{"params": [torch.ones(1)] * size} for size in sizes]
    return made


def saved_with(*sizes: int) -> dict[str, Any]:
    return {"optimizer": {"state": {}, "param_groups": [{"params": list(range(size))} for size in sizes]}}


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        ({}, "holds no model"),
        ({"model": nn.Linear(2, 2).state_dict()}, ""),
        ({"model": nn.Linear(2, 3).state_dict()}, "has weight of shape (3, 2), the model has (2, 2)"),
        ({"model": nn.Linear(2, 2, bias=False).state_dict()}, "without bias"),
        ({"model": {**nn.Linear(2, 2).state_dict(), "scale": torch.ones(1)}}, "with scale"),
    ],
)
def test_a_state_of_another_model_is_told_by_what_differs(saved: dict[str, Any], said: str) -> None:
    finding = find_misfit("model", nn.Linear(2, 2), saved, PATH)

    assert (finding is None) == (not said)
    if finding is not None:
        assert finding.code == "RW710" and said in finding.summary


def test_a_state_of_an_optimizer_with_other_groups_is_told() -> None:
    finding = find_misfit("optimizer", optimizer_of(2), saved_with(1), PATH)

    assert isinstance(finding, Finding) and "with [1] parameters in its groups, this one has [2]" in finding.summary
    assert find_misfit("optimizer", optimizer_of(2, 1), saved_with(2, 1), PATH) is None
    assert find_misfit("optimizer", optimizer_of(2, 1), saved_with(3), PATH) is not None


def test_the_order_counts_of_what_is_trained_alone() -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    turned = dict(reversed(model.state_dict().items()))

    finding = find_order_misfit("model", model, {"model": turned}, PATH)

    assert finding is not None and "1.weight where 0.weight is now" in finding.summary
    model[0].weight.requires_grad_(False)
    assert find_order_misfit("model", model, {"model": turned}, PATH) is None


def test_a_state_of_many_tensors_is_looked_at_without_saving_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    original = torch.save
    monkeypatch.setattr(torch, "save", lambda thing, file: (sizes.append(len(thing)), original(thing, file)))

    check_plain({"model": {str(number): torch.zeros(1) for number in range(1000)}, "names": {"a", "b"}})

    assert sizes == [1]


def test_tensors_that_can_be_saved_as_they_are_are_not_touched() -> None:
    whole, part = torch.ones(3), torch.ones(3)[:2]

    state = on_cpu({"whole": whole, "part": part}, copy=False)

    assert state["whole"] is whole and state["part"] is not part
    assert on_cpu({"whole": whole}, copy=True)["whole"].data_ptr() != whole.data_ptr()
