"""Batches of all kinds: moved, cut short, counted."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from rankwise.errors import UsageError
from rankwise.train.batches import emptied, moved, num_samples_in

X = torch.ones(8, 3)


@dataclass
class Bunch:
    x: torch.Tensor


@pytest.mark.parametrize(
    "batch",
    [
        X,
        (X, torch.zeros(8)),
        {"text": ["a"] * 8, "label": [0] * 8},
        UserDict(ids=X, mask=X),
        [X, ("a",) * 8, torch.tensor(0.5)],
        [{"image": torch.tensor(0)} for _ in range(8)],
    ],
)
def test_samples_are_counted(batch: Any) -> None:
    assert num_samples_in(batch) == 8


@pytest.mark.parametrize("batch", [([torch.ones(3, 5, 5)] * 8, [{"boxes": torch.ones(2, 4)}] * 8), {"what": object()}, UserDict()])
def test_what_cannot_be_counted_is_asked_for(batch: Any) -> None:
    with pytest.raises(UsageError, match="how many samples"):
        num_samples_in(batch)


def test_nothing_is_left_in_an_empty_batch() -> None:
    x, words, named = emptied((X, ("a",) * 8, UserDict(ids=X, names=["b"] * 8)), 8)

    assert (x.shape, words, named["ids"].shape, named["names"]) == ((0, 3), (), (0, 3), [])


def test_samples_that_were_not_stacked_are_left_out_one_by_one() -> None:
    assert emptied([{"text": "a"}, {"text": "b"}], 2) == []
    assert emptied({"x": np.ones((2, 3))}, 2)["x"].shape == (0, 3)


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (((torch.ones(3, 5, 5),), ({"boxes": torch.ones(2, 4)},)), "Tensor of length 3"),  # an image each, as for detection
        ({"x": X[:1], "cut_at": torch.tensor([0, 4, 8])}, "Tensor of length 3"),
        (Bunch(X[:1]), "a Bunch"),
        ({"text": "a"}, "nothing in it that has rows"),
    ],
)
def test_a_batch_of_which_nobody_knows_the_rows_is_not_taken_for_an_empty_one(batch: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        emptied(batch, 1)


class Graph:
    """As torch_geometric's: not a tensor, and it can move itself."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def to(self, device: torch.device) -> Graph:
        return Graph(self.x.to(device))


def test_what_knows_how_to_move_does_it_itself() -> None:
    words = pack_sequence([torch.ones(3), torch.ones(2)])

    batch = moved({"graph": Graph(X), "words": words}, torch.device("meta"))

    assert batch["graph"].x.is_meta
    assert batch["words"].data.is_meta
    assert batch["words"].batch_sizes.is_cpu, "which torch wants there"


def test_a_batch_of_a_class_of_its_own_is_moved_and_stays_one() -> None:
    batch = UserDict(ids=X)

    there = moved(batch, torch.device("meta"))

    assert type(there) is UserDict
    assert there["ids"].device.type == "meta" and batch["ids"].device.type == "cpu"
