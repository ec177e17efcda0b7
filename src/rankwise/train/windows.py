"""Cuts batches into windows of gradient accumulation, and weighs each batch so that every sample of a window counts the same.

DDP takes the mean of the ranks' gradients. A batch with n samples, in a window of N samples over all ranks, whose loss is the mean over its
samples, therefore has the weight n · ranks / N: the sum over all batches and ranks is then the mean over the N samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from rankwise.train import group
from rankwise.train.errors import train_error
from rankwise.train.loader import Loader
from rankwise.train.sample_plan import Plan

Count = Callable[[Any], float]  # samples, tokens, or the sum of their weights


class Micro(NamedTuple):
    """One batch, how many of its samples count, its weight in the window, and whether the window ends with it."""

    batch: Any
    num_samples: float
    weight: float
    closes: bool


def planned(loader: Loader, accumulate: int) -> Iterator[Micro]:
    """The windows of a map-style dataset; all their sizes are known beforehand."""
    for step, portion in enumerate(loader.portions(trains=True)):
        if step % accumulate == 0:
            total, last = window_of(loader.loop.plan, step, accumulate)
        weight = portion.num_samples * loader.world_size / total
        yield Micro(portion.batch, portion.num_samples, weight, step == last)


def window_of(plan: Plan, first: int, accumulate: int) -> tuple[int, int]:
    """How many samples count in the window that begins with this step, and which step is its last."""
    steps = range(first, min(first + accumulate, plan.num_steps))
    return sum(map(plan.step_size, steps)), steps[-1]


def streamed(loader: Loader, accumulate: int) -> Iterator[Micro]:
    """The windows of a stream; one is read whole, because only then it is known how many samples it has."""
    portions = loader.portions(trains=True)
    while window := list(islice(portions, accumulate)):
        total = sum(portion.num_samples_global for portion in window)
        for number, portion in enumerate(window, 1):
            weight = portion.num_samples * loader.world_size / total
            yield Micro(portion.batch, portion.num_samples, weight, number == len(window))


def counted(batches: Iterable[Any], accumulate: int, count: Count) -> Iterator[Micro]:
    """The windows of anything else: a window is read whole, then the ranks tell each other what they have.

    A rank that has fewer batches than another, or one in which nothing counts, takes part with the last that did, at no weight: the ranks
    must do the same number of steps, and DDP's collectives with them.
    """
    source = _with_counts(batches, count)
    world_size = group.world_size()
    spare: Any = None
    is_first = True
    while True:
        window = []
        for batch, samples in islice(source, accumulate):
            spare = batch if samples or spare is None else spare  # of one in which nothing counts the mean loss may be no number
            window.append((spare, samples))
        everyone = group.gathered_numbers([len(window), sum(samples for _, samples in window)])
        num_batches, total = int(max(batches for batches, _ in everyone)), sum(samples for _, samples in everyone)
        if num_batches == 0:
            return
        if is_first and (without := [rank for rank, (batches, _) in enumerate(everyone) if not batches]):
            raise train_error("RW712", f"rank {without[0]} has no batch at all, other ranks have", without[0])
        is_first = False
        window += [(spare, 0)] * (num_batches - len(window))
        for number, (batch, samples) in enumerate(window, 1):
            yield Micro(batch, samples, samples * world_size / (total or 1), number == num_batches)


def _with_counts(batches: Iterable[Any], count: Count) -> Iterator[tuple[Any, float]]:
    if not isinstance(batches, Loader):
        yield from ((batch, count(batch)) for batch in batches)
        return
    for portion in batches.portions(trains=True):
        yield portion.batch, count(portion.batch) if portion.num_samples else 0
