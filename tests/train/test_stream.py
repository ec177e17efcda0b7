"""Streams that every rank reads whole: each sample for one rank, one order for all, and whether it is the same stream."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from rankwise.train.loader import Loader
from rankwise.train.sample_plan import SamplePlan, Uneven
from rankwise.train.stream import Portion, StreamShard, is_same_stream, outline
from tests.train.farm import Farm
from tests.train.jobs import Numbers, Stream


def portions(plan: SamplePlan, rank: int, stream: Any = range(10)) -> list[Portion]:
    return list(StreamShard(stream, list, plan, rank, seed=1))


@pytest.mark.parametrize("done", [0, 4])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_each_sample_counts_once_on_one_rank_and_is_where_it_says(world_size: int, done: int) -> None:
    of_ranks = [portions(SamplePlan(10, 4, world_size, "join", done), rank) for rank in range(world_size)]

    assert len({len(of_rank) for of_rank in of_ranks}) == 1
    counted = [(one.first, one.batch[: one.num_samples]) for step in zip(*of_ranks) for one in step if one.num_samples]
    assert [sample for _, batch in counted for sample in batch] == list(range(done, 10))
    assert all(batch[0] == first for first, batch in counted)
    assert [one.num_samples_global for one in of_ranks[-1]] == ([4, 4, 2] if done == 0 else [4, 2])
    assert all(one.num_rows == len(one.batch) > 0 for of_rank in of_ranks for one in of_rank), "each has something to run"


@pytest.mark.parametrize(("uneven", "read"), [("drop", [*range(8)]), ("pad", [*range(10), 0])])
def test_what_is_left_over_is_left_out_or_filled_from_the_beginning(uneven: Uneven, read: list[int]) -> None:
    of_ranks = [portions(SamplePlan(10, 4, 3 if uneven == "pad" else 2, uneven), rank) for rank in range(3 if uneven == "pad" else 2)]

    assert [sample for step in zip(*of_ranks) for one in step for sample in one.batch] == read
    assert of_ranks[0][-1].end == min(10, len(read)), "what is repeated is not there twice"


def test_a_stream_that_has_nothing_left_gives_nothing() -> None:
    assert portions(SamplePlan(10, 4, 2, "join", done=10), 0) == []
    assert portions(SamplePlan(0, 4, 2, "pad"), 0, stream=[]) == []


def test_a_portion_says_what_stream_it_is_of_by_the_samples_of_all_ranks() -> None:
    first, second, third = portions(SamplePlan(10, 4, 2, "join"), 1)

    assert first.outline == {"": [0.0, 1.0, 2.0, 3.0]}
    assert second.outline == {"": [4.0, 5.0, 6.0, 7.0]}
    assert third.outline is not None and third.outline[""][:2] == [8.0, 9.0]


def test_random_streams_have_one_order_for_all_ranks_and_leave_the_generators_alone() -> None:
    class Shuffled:
        def __iter__(self) -> Iterator[Any]:
            for number in torch.randperm(10):
                yield int(number), random.random(), float(np.random.rand())

    torch.manual_seed(7)
    expected = torch.rand(2).tolist()
    torch.manual_seed(7)
    drawn = []
    reader = iter(StreamShard(Shuffled(), list, SamplePlan(10, 5, 1, "join"), 0, seed=3))  # type: ignore[arg-type]
    samples = [*next(reader).batch]
    drawn.append(torch.rand(()).item())
    samples += next(reader).batch
    drawn.append(torch.rand(()).item())

    assert drawn == expected
    halves = [portions(SamplePlan(10, 10, 2, "join"), rank, Shuffled())[0].batch for rank in range(2)]
    torch.manual_seed(0)
    again = list(StreamShard(Shuffled(), list, SamplePlan(10, 5, 1, "join"), 0, seed=3))  # type: ignore[arg-type]
    assert [sample for one in again for sample in one.batch] == samples
    assert sorted(number for number, *_ in halves[0] + halves[1]) == list(range(10))


def samples(order: list[int], noise: float = 0.0, name: str = "sample") -> list[Any]:
    return [{"x": torch.full((3,), number + noise), "label": (number, f"{name} {number}"), "kind": "number"} for number in order]


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (samples([0, 1, 2]), True),
        (samples([0, 1, 2], noise=0.4), True),  # changed at random on the way, with the labels as they are
        (samples([0, 1, 2], name="other"), True),
        (samples([2, 1, 0]), False),
        (samples([0, 1]), False),
        (samples([1, 2, 3]), False),
        ([], False),
    ],
)
def test_streams_are_the_same_where_any_part_comes_in_the_same_order(other: list[Any], is_same: bool) -> None:
    own = outline(samples([0, 1, 2]))

    assert is_same_stream(own, outline(other)) == is_same_stream(outline(other), own) == is_same


def test_what_says_nothing_does_not_make_streams_different() -> None:
    assert is_same_stream(outline([object()] * 2), outline([object()] * 3)), "nothing is known of either"
    assert is_same_stream(outline(["same"] * 3), outline(["alike"] * 3)), "a part that is alike in all samples"
    assert is_same_stream({}, {}) and not is_same_stream({}, {"": [1.0]})


def test_hosts_may_round_fractions_but_not_whole_numbers() -> None:
    assert is_same_stream({"x": [0.5, 0.25]}, {"x": [0.500001, 0.25]})
    assert not is_same_stream({"x": [0.5, 0.25]}, {"x": [0.501, 0.25]})
    assert not is_same_stream({"x": [1_000_000.0, 2.0]}, {"x": [1_000_001.0, 2.0]})
    assert is_same_stream({"x": [float("nan"), 0.5]}, {"x": [float("nan"), 0.5]})


class SharedAmongWorkers(IterableDataset[int]):
    """Cuts itself by worker, as PyTorch's documentation shows it."""

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        return iter(range(23) if worker is None else range(worker.id, 23, worker.num_workers))


def test_a_stream_that_is_shared_out_among_workers_loses_nothing() -> None:
    loader = Loader(SharedAmongWorkers(), batch_size=4, num_workers=2, multiprocessing_context="fork")

    assert [sample for batch in loader for sample in batch.tolist()] == list(range(23))


def test_what_a_stream_draws_does_not_move_the_generators_of_the_model() -> None:
    torch.manual_seed(1)
    random.seed(1)
    expected = torch.rand(()).item(), random.random()
    torch.manual_seed(1)
    random.seed(1)

    list(Loader(Stream(Numbers(23), shuffled=True), batch_size=4))

    assert (torch.rand(()).item(), random.random()) == expected


@pytest.mark.parametrize("how", ["split by rank", "shuffled by a generator of its own", "empty on one rank"])
def test_a_stream_that_is_another_one_on_each_rank_is_refused_before_the_first_step(farm: Farm, how: str) -> None:
    outcomes = farm.ranks("train_over_streams_of_ranks", 2, how=how)

    assert [outcome.code for outcome in outcomes] == ["RW703"] * 2, outcomes
    said = "finds 0 samples in the stream at first" if how == "empty on one rank" else "reads other samples from the stream"
    assert f"rank 1 {said}" in outcomes[0].error


@pytest.mark.parametrize("is_counted", [False, True], ids=["by samples", "by count"])
@pytest.mark.parametrize(("how", "said"), [("skips a sample", "by now"), ("ends earlier", "2 samples in the stream next, rank 0 6")])
def test_a_stream_that_becomes_another_one_on_a_rank_is_refused_there(farm: Farm, how: str, said: str, is_counted: bool) -> None:
    outcomes = farm.ranks("train_over_streams_of_ranks", 2, how=how, is_counted=is_counted, timeout_s=20)

    assert [outcome.code for outcome in outcomes] == ["RW703"] * 2, outcomes
    assert said in outcomes[0].error


def test_what_a_stream_gives_is_compared_again_now_and_then() -> None:
    loader = Loader(Stream(Numbers(400)), batch_size=2)

    outlined = [number for number, portion in enumerate(loader.portions()) if portion.outline is not None]

    assert outlined == [0, 1, 2, 4, 8, 16, 32, 64, 128, 192]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_of_a_stream_may_be_changed_at_random_on_each_rank(farm: Farm, num_workers: int) -> None:
    assert farm.run("train_over_streams_of_ranks", 2, how="changed at random", num_workers=num_workers) == [20, 20]
