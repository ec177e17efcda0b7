"""Metrics: each prediction once and in order, means over samples, and work of one rank that the others wait for."""

from __future__ import annotations

import math
from itertools import islice

import pytest
import torch

from rankwise.errors import UsageError
from rankwise.train import Loader, Means, Predictions
from tests.train.farm import Farm

JOBS = "tests.train.jobs_metrics"


@pytest.mark.parametrize("stream", [False, True], ids=["map-style", "stream"])
@pytest.mark.parametrize("world_size", [0, 1, 2, 3, 4])
def test_every_prediction_comes_once_and_in_order(farm: Farm, world_size: int, stream: bool) -> None:
    lengths = [0, 1, max(world_size - 1, 0), world_size, world_size + 1, 2, 3, 5, 7, 11, 13, 29]

    ranks = farm.run("predictions", world_size, jobs=JOBS, lengths=lengths, stream=stream)

    for gathered in ranks:
        assert gathered == {length: [[i, 2 * i] for i in range(length)] for length in lengths}


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"uneven": "pad"},
        {"shuffle": True, "uneven": "pad"},
        {"num_workers": 2},
        {"stream": True, "uneven": "pad"},
        {"min_batch_size": 2, "uneven": "pad"},
    ],
    ids=str,
)
def test_neither_shuffling_nor_padding_nor_workers_change_what_is_gathered(farm: Farm, options: dict[str, object]) -> None:
    ranks = farm.run("predictions", 3, jobs=JOBS, lengths=[1, 10, 16], **options)

    assert ranks[2] == {length: [[i, 2 * i] for i in range(length)] for length in (1, 10, 16)}


@pytest.mark.parametrize("dtype", ["bool", "int64", "float16", "bfloat16", "float64", "uint8"])
def test_predictions_keep_their_dtype(farm: Farm, dtype: str) -> None:
    assert farm.run("predictions_of_dtype", 2, jobs=JOBS, dtype=dtype)[1] == (f"torch.{dtype}", [0, 1, 0, 1, 0])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("before the loop", "no samples"),
        ("one for the batch", "shape ()"),
        ("wrong length", "shape (5,)"),
        ("twice", "two outputs"),
        ("one rank leaves out", "rank 1 added 1 batches"),
        ("rows of another width", "int64[2] on rank 0, int64[3] on rank 1"),
        ("rows of another dtype", "float32[] on rank 1, int64[] on rank 0"),
        ("all ranks leave out", "no output for sample 0"),
    ],
)
def test_outputs_that_do_not_belong_to_batches_are_refused(farm: Farm, how: str, said: str) -> None:
    outcomes = farm.ranks("misused_predictions", 2, jobs=JOBS, how=how)

    assert [outcome.code for outcome in outcomes] == ["RW706", "RW706"], outcomes
    assert said in outcomes[1].error


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_means_count_every_sample_once(farm: Farm, world_size: int) -> None:
    for means in farm.run("means", world_size, jobs=JOBS, length=17):
        assert means == {"number": pytest.approx(8.0), "square": pytest.approx(sum(i * i for i in range(17)) / 17)}


def test_the_mean_over_no_samples_is_not_a_number(farm: Farm) -> None:
    assert farm.run("means", 2, jobs=JOBS, length=0) == [{}, {}]
    assert not math.isnan(farm.run("means", 3, jobs=JOBS, length=1)[2]["number"])


@pytest.mark.parametrize("output", [{"logits": torch.zeros(2)}, ["a", "b"]], ids=["dict", "list"])
def test_an_output_that_is_no_tensor_is_refused(output: object) -> None:
    loader = Loader(torch.arange(6.0), batch_size=2)
    predictions = Predictions(loader)
    next(iter(loader))
    with pytest.raises(UsageError, match=f"the output is a {type(output).__name__}"):
        predictions.add(output)  # type: ignore[arg-type]


def test_predictions_in_memory_that_the_model_uses_again_stay_what_they_were() -> None:
    loader, buffer = Loader(torch.arange(6.0), batch_size=2), torch.zeros(2)
    predictions = Predictions(loader)
    for x in loader:
        predictions.add(buffer.copy_(x * 2))

    assert predictions.gather().tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


def test_a_mean_is_one_number_and_any_number_of_samples_will_do() -> None:
    means = Means()
    means.add(torch.tensor(2), loss=torch.tensor(1.0))  # as a mask's sum gives it
    means.add(6, loss=2.0)
    with pytest.raises(UsageError, match=r"loss has shape \(2,\)"):
        means.add(2, loss=torch.ones(2))

    assert means.compute() == {"loss": 1.75}
    means.add(torch.tensor(4), loss=0.5)
    assert type(means.compute()["loss"]) is float


@pytest.mark.parametrize("inner", ["whole", "left", "kept", "look"])
def test_rows_are_those_of_the_loop_they_were_made_in(inner: str) -> None:
    loader = Loader(torch.arange(9.0), batch_size=3, shuffle=True)  # type: ignore[arg-type]
    outer, kept = Predictions(loader), []
    for x in loader:
        own = Predictions(loader)
        for number, y in enumerate(loader if inner == "whole" else islice(loader, 2) if inner == "left" else ()):
            own.add(y * 2)
            assert number < 3
        if inner == "whole":
            assert own.gather().tolist() == [2.0 * i for i in range(9)]
        if inner in ("kept", "look"):
            kept = [*kept, iter(loader)] if inner == "kept" and outer._rows else []
            next(kept[-1] if kept else iter(loader))
        outer.add(x)

    assert outer.gather().tolist() == [float(i) for i in range(9)]
