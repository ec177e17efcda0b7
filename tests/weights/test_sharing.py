"""Memory that several tensors share holds one value: who shares it, and what is refused because of it."""

from __future__ import annotations

import pytest
import torch

from rankwise.weights.sharing import check_overlaps, memory_of, same_bits, write_into
from rankwise.weights.tensor_records import CheckpointError

MEMORY = torch.zeros(16)


def check(tensors: dict[str, torch.Tensor], values: dict[str, torch.Tensor]) -> None:
    check_overlaps(tensors, values.__getitem__, "last.pt")


def test_two_views_of_the_same_elements_are_one_memory() -> None:
    assert memory_of(MEMORY.view(4, 4)) == memory_of(MEMORY.view(4, 4))


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(4, 4),
        MEMORY.view(4, 4).t(),
        MEMORY.view(2, 8),
        MEMORY[:4],
        MEMORY.view(torch.int32).view(4, 4),
        MEMORY[1:2].expand(4, 4),
    ],
)
def test_what_lies_otherwise_is_another(other: torch.Tensor) -> None:
    assert memory_of(MEMORY.view(4, 4)) != memory_of(other)


def test_tensors_without_memory_share_with_none() -> None:
    assert memory_of(torch.empty(2, device="meta")) != memory_of(one := torch.empty(2, device="meta"))
    assert memory_of(one) == memory_of(one)
    assert memory_of(empty := torch.zeros(0)) == id(empty)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ([1.0, torch.nan], [1.0, torch.nan], True),
        ([0.0], [-0.0], False),
        ([1.0], [1.0, 1.0], False),
        ([1.0], [[1.0]], False),
        ([1], [1.0], False),
        ([0], [0.0], False),
        ([], [], True),
    ],
)
def test_the_same_bits(one: list[float], other: list[float], is_same: bool) -> None:
    assert same_bits(torch.tensor(one), torch.tensor(other)) is is_same


def test_an_expanded_tensor_is_written_once() -> None:
    row = torch.zeros(3)

    write_into(row.expand(4, 3), torch.arange(12.0).view(4, 3))

    assert row.tolist() == [0, 1, 2]


def test_views_that_do_not_touch_may_have_any_value() -> None:
    check({"low": MEMORY[:8], "high": MEMORY[8:]}, {"low": torch.ones(8), "high": torch.zeros(8)})
    check({"one": torch.zeros(4), "other": torch.zeros(4)}, {"one": torch.ones(4), "other": torch.zeros(4)})


@pytest.mark.parametrize("other", [MEMORY[7:15], MEMORY[2:6], MEMORY.view(4, 4).t(), MEMORY[::2]])
def test_views_that_touch_need_values_that_agree(other: torch.Tensor) -> None:
    one = MEMORY[:8]

    check({"one": one, "other": other}, {"one": torch.ones(8), "other": torch.ones(other.shape)})
    with pytest.raises(CheckpointError, match="share memory") as caught:
        check({"one": one, "other": other}, {"one": torch.ones(8), "other": torch.zeros(other.shape)})

    assert caught.value.finding.code == "RW737"
    assert MEMORY.sum() == 0  # tried on a copy


def test_an_expanded_tensor_needs_rows_that_are_one() -> None:
    rows = {"rows": torch.zeros(1, 3).expand(4, 3)}

    check(rows, {"rows": torch.arange(3.0).expand(4, 3).clone()})
    with pytest.raises(CheckpointError, match="elements of rows share memory"):
        check(rows, {"rows": torch.arange(12.0).view(4, 3)})


def test_a_window_that_slides_over_its_own_elements_is_refused() -> None:
    windows = {"windows": MEMORY.unfold(0, 4, 2)}

    with pytest.raises(CheckpointError, match="elements of windows share memory"):
        check(windows, {"windows": torch.rand(7, 4)})


def test_a_matrix_that_was_turned_is_not_expanded() -> None:
    check({"turned": MEMORY.view(2, 8).t()}, {"turned": torch.rand(8, 2)})
