"""What a DataLoader gave: the order of its samples, what was drawn twice, and whose random numbers a sample used."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler
from torch.utils.data._utils import fetch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from rankwise.probe import sites
from rankwise.probe.audit import data, record


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What is written, with the probe's hooks on torch for the time of a test; every batch is looked at."""
    written: list[dict[str, Any]] = []
    monkeypatch.setattr(record, "write", lambda what, /, **facts: written.append({"a": what, **facts}))
    monkeypatch.setattr(record, "is_sampled", lambda n: True)
    monkeypatch.setattr(data, "_pass_counts", {})
    monkeypatch.setattr(data, "_num_fetches", 0)
    for cls, name in (
        (DataLoader, "__init__"),
        (_BaseDataLoaderIter, "_next_index"),
        (fetch._MapDatasetFetcher, "fetch"),
        (fetch._IterableDatasetFetcher, "fetch"),
    ):
        monkeypatch.setattr(cls, name, getattr(cls, name))  # put back at the end
    data.attach(sys.modules["torch.utils.data.dataloader"])
    data.attach_fetchers(fetch)
    yield written
    sites.forget()


def read(loader: Any, most: int = 1000) -> None:
    """One pass over a loader, or its beginning, as the probe sees it."""
    iterator = iter(loader)
    data.pass_began(sys._getframe(), iterator, loader)
    for _ in range(most):
        try:
            batch = next(iterator)
        except StopIteration:
            data.pass_ended(iterator)
            return
        data.batch_given(iterator, batch)


def of(lines: list[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["a"] == what]


def test_a_pass_is_told_with_its_samples_in_their_order(lines: list[dict[str, Any]]) -> None:
    loader = DataLoader(torch.arange(10.0), batch_size=4)  # type: ignore[arg-type]
    read(loader)
    read(loader)

    passes = [(line["n"], line["size"], line["shuffles"], line["is_distributed"]) for line in of(lines, "pass")]
    assert passes == [(0, 10, False, False), (1, 10, False, False)]
    assert [line["ids"] for line in of(lines, "drawn")][:3] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [line["rows"] for line in of(lines, "batch")][:3] == [4, 4, 2]
    first, second = of(lines, "pass_end")
    assert (first["whole"], first["batches"], first["samples"], first["repeats"]) == (True, 3, 10, 0)
    assert first["sum"] == second["sum"], "the same order again"


@pytest.mark.parametrize(
    ("sampler", "shuffles", "has_epoch"), [("random", True, False), ("distributed", True, True), ("in order", False, False)]
)
def test_what_shuffles_and_what_has_an_epoch(lines: list[dict[str, Any]], sampler: str, shuffles: bool, has_epoch: bool) -> None:
    source = list(range(10))
    samplers = {"random": RandomSampler(source), "distributed": DistributedSampler(source, 2, 0), "in order": None}  # type: ignore[arg-type]

    read(DataLoader(source, batch_size=2, sampler=samplers[sampler]))  # type: ignore[arg-type]

    (line,) = of(lines, "pass")
    assert (line["shuffles"], line["has_epoch"], line["is_distributed"]) == (shuffles, has_epoch, sampler == "distributed")
    assert line["epoch"] == (0 if has_epoch else None)


def test_another_order_has_another_sum_and_what_is_drawn_twice_is_counted(lines: list[dict[str, Any]]) -> None:
    for order in ([0, 1, 2, 3], [1, 0, 2, 3], [2, 3, 0, 1], [0, 1, 0, 1]):
        read(DataLoader(list(range(4)), sampler=order, batch_size=2))  # type: ignore[arg-type]

    ends = of(lines, "pass_end")
    assert len({end["sum"] for end in ends}) == 4
    assert [end["repeats"] for end in ends] == [0, 0, 0, 2]


def test_a_pass_left_half_way_is_no_whole_one(lines: list[dict[str, Any]]) -> None:
    loader = DataLoader(list(range(10)), batch_size=2)  # type: ignore[arg-type]
    read(loader, most=2)

    assert of(lines, "pass_end") == []
    assert len(of(lines, "batch")) == 2


def test_numbers_that_are_none_are_told(lines: list[dict[str, Any]]) -> None:
    rows = [{"x": torch.ones(2), "y": torch.tensor(1.0)}, {"x": torch.tensor([1.0, torch.nan]), "y": torch.tensor(0.0)}]
    read(DataLoader(rows, batch_size=1))  # type: ignore[arg-type]

    good, bad = of(lines, "batch")
    assert (good["bad"], bad["bad"], good["numel"], good["rows"]) == ([], [0], 3, 1)
    assert good["sums"][1] != bad["sums"][1] and None not in good["sums"]


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        (torch.arange(10.0), torch.arange(10.0), True),
        (torch.arange(10.0), torch.arange(10.0).flip(0), False),
        (list(range(1000)), list(range(1000)), True),
        (list(range(0, 1000, 2)), list(range(1, 1000, 2)), False),
        ([torch.zeros(3)] * 2, [torch.ones(3)] * 2, False),
    ],
)
def test_one_dataset_on_all_ranks_is_told_from_one_for_each(lines: list[dict[str, Any]], one: Any, other: Any, are_same: bool) -> None:
    for source in (one, other):
        read(DataLoader(source, batch_size=1000))

    first, second = (line["data_sum"] for line in of(lines, "pass"))
    assert (first == second) == are_same and first is not None


class Drawing:
    """A dataset that augments its samples."""

    def __init__(self, how: str) -> None:
        self.how, self.own, self.dice = how, torch.Generator(), random.Random(1)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> float:
        return {
            "nothing": lambda: 0.0,
            "random": random.random,
            "numpy": np.random.rand,
            "torch": lambda: torch.rand(()).item(),
            "dataset.own": lambda: torch.rand((), generator=self.own).item(),
            "dataset.dice": self.dice.random,
        }[self.how]()


@pytest.mark.parametrize("how", ["nothing", "random", "numpy", "torch", "dataset.own", "dataset.dice"])
def test_the_generators_that_a_sample_used_are_named(lines: list[dict[str, Any]], how: str) -> None:
    read(DataLoader(Drawing(how), batch_size=2))  # type: ignore[arg-type]

    assert [(line["used"], line["worker"]) for line in of(lines, "random")] == ([] if how == "nothing" else [([how], -1)])


def test_tensors_are_found_whatever_holds_them_and_few_are_enough() -> None:
    one, two, three = (torch.full((2,), float(number)) for number in range(3))

    found = data.first_tensors({"a": one, "b": [two, ("x", three)]})
    assert [tensor[0].item() for tensor in found] == [0, 1, 2]
    assert len(data.first_tensors([one] * 10)) == 4 and data.first_tensors("text") == []
