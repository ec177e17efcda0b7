"""Windows of gradient accumulation: every sample of a window counts the same, and all ranks do the same number of steps."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise.errors import TrainError
from rankwise.train import group, windows
from rankwise.train.sample_plan import SamplePlan
from rankwise.train.windows import Micro, counted, window_of


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the other ranks have, window by window: [batches, samples] of each."""

    def answers(*of_windows: list[list[float]]) -> None:
        left = iter(of_windows)
        monkeypatch.setattr(group, "world_size", lambda: 1 + len(of_windows[0]))
        monkeypatch.setattr(group, "gathered_numbers", lambda own: [own, *([own[0], *theirs] for theirs in next(left))])

    return answers


def cut(batches: list[list[int]], accumulate: int) -> list[Micro]:
    return list(counted(batches, accumulate, len))


@pytest.mark.parametrize(
    ("first", "accumulate", "wanted"), [(0, 1, (4, 0)), (0, 2, (8, 1)), (2, 2, (2, 2)), (0, 3, (10, 2)), (0, 9, (10, 2)), (1, 2, (6, 2))]
)
def test_a_window_ends_with_the_epoch(first: int, accumulate: int, wanted: tuple[int, int]) -> None:
    assert window_of(SamplePlan(10, 4, 2, "join"), first, accumulate) == wanted


def test_the_weights_of_a_window_add_up_to_its_samples(others: Any) -> None:
    others([[2, 6]], [[1, 1]], [[0, 0]])

    found = cut([[1], [2, 3, 4], [5, 6, 7]], 2)

    assert [(micro.num_samples, micro.weight, micro.closes) for micro in found] == [(1, 0.2, False), (3, 0.6, True), (3, 1.5, True)]


def test_a_rank_with_fewer_batches_takes_part_with_its_last_at_no_weight(others: Any) -> None:
    others([[2, 4]], [[2, 4]], [[0, 0]])

    found = cut([[1, 2]], 2)

    assert [micro.batch for micro in found] == [[1, 2]] * 4
    assert [micro.weight for micro in found] == [2 * 2 / 6, 0, 0, 0]
    assert [micro.closes for micro in found] == [False, True, False, True]


def test_a_batch_in_which_nothing_counts_is_not_the_one_that_is_run(others: Any) -> None:
    others([[2, 2]], [[0, 0]])

    found = cut([[1], []], 2)

    assert [(micro.batch, micro.num_samples) for micro in found] == [([1], 1), ([1], 0)]


def test_a_window_in_which_nothing_counts_weighs_nothing(others: Any) -> None:
    others([[1, 0]], [[0, 0]])

    assert [micro.weight for micro in cut([[]], 1)] == [0]


@pytest.mark.parametrize(("own", "rank"), [([], 0), ([[1]], 1)])
def test_a_rank_without_any_batch_is_named(others: Any, own: list[list[int]], rank: int) -> None:
    others([[0 if own else 1, 0 if own else 1]])

    with pytest.raises(TrainError) as caught:
        cut(own, 1)

    assert caught.value.finding.code == "RW712"
    assert [place.rank for place in caught.value.finding.culprits] == [rank]


def test_where_no_rank_has_a_batch_there_is_nothing_to_do(others: Any) -> None:
    others([[0, 0]])

    assert cut([], 2) == []


class Portion:
    def __init__(self, num_samples: int, everywhere: int) -> None:
        self.batch, self.num_samples, self.num_samples_global = list(range(num_samples)), num_samples, everywhere
        self.outline = None


class Stream:
    world_size = 2

    def portions(self, trains: bool) -> Any:
        assert trains
        return iter([Portion(1, 4), Portion(3, 4), Portion(2, 2)])


def test_a_stream_is_read_a_window_at_a_time() -> None:
    found: Any = list(windows.streamed(Stream(), 2))  # type: ignore[arg-type]

    assert [(micro.num_samples, micro.weight, micro.closes) for micro in found] == [(1, 0.25, False), (3, 0.75, True), (2, 2.0, True)]
