"""Who gets which sample: every one once, the same number of steps for all, from any position on any number of ranks."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rankwise.train.sample_plan import SamplePlan, epoch_order, even_part, mixed_seed
from rankwise.train.windows import window_of

lengths = st.integers(0, 60)
ranks = st.integers(1, 5)
batches = st.integers(1, 17)


def positions(plan: SamplePlan, num_steps: int | None = None) -> list[int]:
    """The positions that count, in the order one process would take them."""
    steps = range(plan.num_steps if num_steps is None else num_steps)
    shares = [plan.share(step, rank) for step in steps for rank in range(plan.world_size)]
    return [position for share in shares for position in share.positions[: share.num_samples]]


@given(lengths, batches, ranks)
def test_join_gives_every_sample_to_exactly_one_rank_in_order(length: int, batch: int, world_size: int) -> None:
    assert positions(SamplePlan(length, batch, world_size, "join")) == list(range(length))


@given(lengths, batches, ranks)
def test_pad_repeats_fewer_samples_than_there_are_ranks_and_gives_all_the_same_number(length: int, batch: int, world_size: int) -> None:
    plan = SamplePlan(length, batch * world_size, world_size, "pad")

    taken = positions(plan)
    sizes = {sum(plan.share(step, rank).num_samples for step in range(plan.num_steps)) for rank in range(world_size)}
    assert taken[:length] == list(range(length))
    assert len(taken) - length < world_size
    assert len(sizes) == 1


@given(lengths, batches, ranks, st.integers(1, 4))
def test_pad_makes_no_step_of_repeated_samples_alone(length: int, batch: int, world_size: int, least: int) -> None:
    assert SamplePlan(length, batch, world_size, "pad", least=least).num_steps == -(-length // batch)


@given(lengths, batches, ranks)
def test_drop_leaves_out_only_the_incomplete_step(length: int, batch: int, world_size: int) -> None:
    assert positions(SamplePlan(length, batch, world_size, "drop")) == list(range(length - length % batch))


@given(lengths, batches, ranks)
def test_a_rank_without_a_sample_takes_part_with_one_that_does_not_count(length: int, batch: int, world_size: int) -> None:
    plan = SamplePlan(length, batch, world_size, "join")
    for step in range(plan.num_steps):
        shares = [plan.share(step, rank) for rank in range(world_size)]
        assert all(len(share.positions) > 0 for share in shares)
        assert sum(share.num_samples for share in shares) == plan.step_size(step)


@given(lengths, batches, ranks, st.integers(1, 4), st.sampled_from(["join", "pad"]))
def test_no_rank_gets_fewer_than_the_least_where_a_step_has_as_many(
    length: int, batch: int, world_size: int, least: int, uneven: str
) -> None:
    plan = SamplePlan(length, batch, world_size, uneven, least=least)  # type: ignore[arg-type]

    for step in range(plan.num_steps):
        shares = [plan.share(step, rank) for rank in range(world_size)]
        assert min(len(share.positions) for share in shares) >= min(least, plan.step_size(step))
        assert sum(share.num_samples for share in shares) == plan.step_size(step)
    assert positions(plan)[:length] == list(range(length))


def test_the_last_window_of_103_samples_on_4_ranks() -> None:
    plan = SamplePlan(103, 12, 4, "join", least=2)

    last = [plan.share(plan.num_steps - 1, rank) for rank in range(4)]

    assert [share.num_samples for share in last] == [3, 2, 2, 0]
    assert [len(share.positions) for share in last] == [3, 2, 2, 2]


@given(lengths, batches, ranks, batches, ranks, st.data())
def test_the_rest_of_an_epoch_can_be_done_by_other_ranks(
    length: int, batch: int, before: int, other: int, after: int, data: st.DataObject
) -> None:
    first = SamplePlan(length, batch, before, "join")
    num_steps = data.draw(st.integers(0, first.num_steps))

    second = SamplePlan(length, other, after, "join", done=first.done_after(num_steps))

    assert positions(first, num_steps) + positions(second) == list(range(length))


@given(lengths, batches, ranks, st.integers(1, 5), st.sampled_from(["join", "pad", "drop"]))
def test_the_weights_of_a_window_add_up_to_one(length: int, batch: int, world_size: int, accumulate: int, uneven: str) -> None:
    plan = SamplePlan(length, batch, world_size, uneven)  # type: ignore[arg-type]
    step = 0
    while step < plan.num_steps:
        total, last = window_of(plan, step, accumulate)
        counted = [plan.share(s, rank).num_samples for s in range(step, last + 1) for rank in range(world_size)]
        assert sum(counted) == total
        step = last + 1


@given(st.integers(0, 100), ranks)
def test_parts_differ_by_at_most_one(total: int, num_parts: int) -> None:
    parts = [even_part(total, num_parts, part) for part in range(num_parts)]

    assert parts[0][0] == 0 and parts[-1][1] == total
    assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))
    assert max(b - a for a, b in parts) - min(b - a for a, b in parts) <= 1


def test_epochs_and_seeds_give_different_orders_and_the_same_ones_again() -> None:
    orders = {tuple(epoch_order(20, seed, epoch).tolist()) for seed in range(5) for epoch in range(5)}

    assert len(orders) == 25
    assert epoch_order(20, 3, 4).tolist() == epoch_order(20, 3, 4).tolist()
    assert len({mixed_seed(a, b, c) for a in range(10) for b in range(10) for c in range(10)}) == 1000
