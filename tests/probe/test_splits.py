"""What an all_to_all sends to each rank and expects from each, read from its arguments."""

from __future__ import annotations

import types

import torch

from rankwise.probe import splits

PAIR = types.SimpleNamespace(size=lambda: 2)


def test_lists_of_tensors() -> None:
    assert splits.of_lists([torch.zeros(1), torch.zeros(5)], [torch.zeros(2, 2), torch.zeros(0)]) == ([4, 0], [1, 5])


def test_one_tensor_with_split_sizes() -> None:
    assert splits.of_one(torch.zeros(3, 4), torch.zeros(5, 4), [0, 3], [4, 1], PAIR) == ([16, 4], [0, 12])


def test_one_tensor_without_them_goes_in_equal_parts(monkeypatch) -> None:
    monkeypatch.setattr("torch.distributed.distributed_c10d.get_world_size", lambda group: 2)

    assert splits.of_one(torch.zeros(4, 3), torch.zeros(6, 2), group=PAIR) == ([6, 6], [6, 6])


def test_the_functional_one_makes_its_output_as_wide_as_its_input() -> None:
    assert splits.of_functional(torch.zeros(5, 4), [2, 1], [4, 1], PAIR) == ([16, 4], [8, 4])


def test_an_empty_tensor_has_a_width_all_the_same() -> None:
    assert splits.of_one(torch.zeros(3, 4), torch.zeros(0, 4), [1, 2], [0, 0], PAIR) == ([0, 0], [4, 8])
