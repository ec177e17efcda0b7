"""Training on several ranks ends with the parameters of one process that takes the same samples in each step."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.families import mostly_live
from tests.train.farm import Farm

TOLERANCE = 1e-6
is_long = os.environ.get("RANKWISE_LONG") == "1"
GRID: dict[str, Any] = {"lengths": [37, 61, 64] if is_long else [37], "accumulates": [1, 3, 4], "optimizers": ["sgd", "adamw"]}


@pytest.fixture(scope="module")
def by_hand(farm: Farm) -> dict[tuple[Any, ...], list[float]]:
    result: dict[tuple[Any, ...], list[float]] = farm.alone("equality_grid", by_hand=True, **GRID)
    return result


def distance(one: list[float], other: list[float]) -> float:
    assert len(one) == len(other)
    return max(abs(a - b) for a, b in zip(one, other))


@pytest.mark.parametrize("world_size", mostly_live([0, 1, 2, 3, 4], 2))
def test_fifty_steps_end_where_one_process_ends(farm: Farm, by_hand: dict[tuple[Any, ...], list[float]], world_size: int) -> None:
    ranks = farm.run("equality_grid", world_size, **GRID)

    apart = {case: distance(trained, by_hand[case]) for case, trained in ranks[0].items()}
    assert max(apart.values()) <= TOLERANCE, {case: far for case, far in apart.items() if far > TOLERANCE}
    assert all(rank == ranks[0] for rank in ranks), "the ranks have drifted apart"


example = st.fixed_dictionaries(
    {
        "length": st.integers(1, 40),
        "global_batch": st.integers(1, 12),
        "accumulate": st.integers(1, 5),
        "optimizer": st.sampled_from(["sgd", "adamw"]),
        "num_steps": st.integers(1, 12),
    }
)


@settings(max_examples=100 if is_long else 6, deadline=None, derandomize=True)
@given(st.integers(2, 4), st.lists(example, min_size=4, max_size=4))
def test_any_window_batch_and_dataset_size_ends_where_one_process_ends(farm: Farm, world_size: int, examples: list[dict[str, Any]]) -> None:
    ranks = farm.run("examples_against_one_process", world_size, examples=examples)

    for case, trained in zip(examples, ranks[0]):
        assert distance(trained, farm.alone("train_by_hand", **case)) <= TOLERANCE, case


def test_a_stream_ends_where_one_process_ends(farm: Farm) -> None:
    case: dict[str, Any] = {"length": 29, "global_batch": 8, "accumulate": 2, "num_steps": 20}
    expected = farm.alone("train_by_hand", shuffle=False, **case)

    assert distance(farm.run("train_with_rankwise", 3, stream=True, **case)[0], expected) <= TOLERANCE


@pytest.mark.parametrize("lengths", [[12, 12], [13, 7], [3, 14, 8]], ids=str)
def test_plain_dataloaders_of_different_lengths_end_where_one_process_ends(farm: Farm, lengths: list[int]) -> None:
    ranks = farm.run("train_over_plain_dataloader", len(lengths), lengths=lengths)

    assert distance(ranks[0], farm.alone("plain_dataloaders_by_hand", lengths=lengths)) <= TOLERANCE
    assert all(rank == ranks[0] for rank in ranks)


def test_tokens_count_alike_where_the_user_counts_tokens(farm: Farm) -> None:
    assert distance(farm.run("train_counting_tokens", 2)[0], farm.alone("train_counting_tokens", by_hand=True)) <= TOLERANCE


def test_weights_of_samples_may_be_fractions(farm: Farm) -> None:
    expected = farm.alone("train_counting_tokens", by_hand=True, scale=0.11)

    assert distance(farm.run("train_counting_tokens", 2, scale=0.11)[0], expected) <= TOLERANCE


@pytest.mark.parametrize(("kind", "num_ranks"), [("fsdp1", 2), ("fsdp2", 2), ("fsdp1 in copies", 4), ("fsdp2 in copies", 4)])
def test_clipping_sees_the_parts_of_all_ranks(farm: Farm, kind: str, num_ranks: int) -> None:
    case: dict[str, Any] = {"clip_norm": 0.05, "num_steps": 10}
    ranks = farm.run("train_in_parts", num_ranks, jobs="tests.train.jobs_checkpoints", kind=kind, **case)

    assert distance(ranks[0], farm.alone("train_by_hand", **case)) <= TOLERANCE


def test_clipping_sees_the_whole_window(farm: Farm) -> None:
    case: dict[str, Any] = {"accumulate": 3, "clip_norm": 0.05}

    assert distance(farm.run("train_with_rankwise", 2, **case)[0], farm.alone("train_by_hand", **case)) <= TOLERANCE


def test_bf16_ends_within_its_rounding(farm: Farm) -> None:
    """bf16 keeps 8 bits: a product is off by up to 2⁻⁸ of itself, and other batch shapes round at other places."""
    case: dict[str, Any] = {"accumulate": 3, "num_steps": 50}
    expected = farm.alone("train_by_hand", bf16=True, **case)

    ranks = farm.run("train_with_rankwise", 2, precision="bf16", **case)

    assert distance(ranks[0], expected) <= 2**-8 * max(map(abs, expected))
    assert distance(expected, farm.alone("train_by_hand", **case)) > TOLERANCE, "or bf16 was not used at all"
