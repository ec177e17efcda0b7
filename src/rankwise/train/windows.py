"""Cuts batches into windows of gradient accumulation, and weighs each batch so that every sample of a window counts the same.

DDP takes the mean of the ranks' gradients. A batch with n samples, in a window of N samples over all ranks, whose loss is the mean over its
samples, therefore has the weight n · ranks / N: the sum over all batches and ranks is then the mean over the N samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from rankwise.errors import TrainError
from rankwise.train import group
from rankwise.train.errors import train_error
from rankwise.train.loader import Loader
from rankwise.train.sample_plan import SamplePlan
from rankwise.train.stream import Portion, is_same_stream

Count = Callable[[Any], float]  # samples, tokens, or the sum of their weights


class Micro(NamedTuple):
    """One batch, how many of its samples count, its weight in the window, and whether the window ends with it."""

    batch: Any
    num_samples: float
    weight: float
    closes: bool


def planned(loader: Loader, accumulate: int) -> Iterator[Micro]:
    """The windows of a map-style dataset, whose sizes are all known beforehand."""
    for step, portion in enumerate(loader.portions(trains=True)):
        if step % accumulate == 0:
            total, last = window_of(loader.loop.plan, step, accumulate)
        weight = portion.num_samples * loader.world_size / total
        yield Micro(portion.batch, portion.num_samples, weight, step == last)


def window_of(plan: SamplePlan, first: int, accumulate: int) -> tuple[int, int]:
    """How many samples count in the window that begins with step `first`, and which step is its last."""
    steps = range(first, min(first + accumulate, plan.num_steps))
    return sum(map(plan.step_size, steps)), steps[-1]


def streamed(loader: Loader, accumulate: int, loop: int = 0) -> Iterator[Micro]:
    """The windows of a stream. A window is read whole, because only then it is known how many samples it has."""
    portions = _read_alike(loader.portions(trains=True), accumulate, loop)
    while window := list(islice(portions, accumulate)):
        total = sum(portion.num_samples_global for portion in window)
        for number, portion in enumerate(window, 1):
            weight = portion.num_samples * loader.world_size / total
            yield Micro(portion.batch, portion.num_samples, weight, number == len(window))


def counted(batches: Iterable[Any], accumulate: int, count: Count, loop: int = 0) -> Iterator[Micro]:
    """The windows of any other batches: a window is read whole, then the ranks tell each other what they have.

    A rank that has fewer batches than another, or a batch in which nothing counts, takes part with its last batch that did count, at no
    weight: all ranks must do the same number of steps, and so of DDP's collectives.
    """
    source = _with_counts(batches, accumulate, count, loop)
    world_size = group.world_size()
    spare: Any = None
    is_first = True
    while True:
        window = []
        for batch, samples in islice(source, accumulate):
            spare = batch if samples or spare is None else spare  # the mean loss of a batch in which nothing counts may be NaN
            window.append((spare, samples))
        everyone = _gathered(loop, [len(window), sum(samples for _, samples in window)])
        num_batches, total = int(max(batches for batches, _ in everyone)), sum(samples for _, samples in everyone)
        if num_batches == 0:
            return
        if is_first and (without := [rank for rank, (batches, _) in enumerate(everyone) if not batches]):
            raise train_error("RW712", f"rank {without[0]} has no batch at all, other ranks have", without[0])
        is_first = False
        window += [(spare, 0)] * (num_batches - len(window))
        for number, (batch, samples) in enumerate(window, 1):
            yield Micro(batch, samples, samples * world_size / (total or 1), number == num_batches)


def _with_counts(batches: Iterable[Any], accumulate: int, count: Count, loop: int) -> Iterator[tuple[Any, float]]:
    if not isinstance(batches, Loader):
        yield from ((batch, count(batch)) for batch in batches)
        return
    portions = batches.portions(trains=True)
    for portion in _read_alike(portions, accumulate, loop) if batches.is_stream else portions:
        yield portion.batch, count(portion.batch) if portion.num_samples else 0


def _read_alike(portions: Iterator[Portion], accumulate: int, loop: int) -> Iterator[Portion]:
    """The portions of a stream, as long as all ranks read the same one. Each rank reads all of the stream and keeps its part.

    A sample that one rank alone skips (a failed download) shifts all samples after it, and a stream that ends earlier on one rank leaves
    the others waiting in DDP's collectives. The number of samples is compared in each window, their content now and then.
    """
    is_first = True
    while True:
        window = list(islice(portions, accumulate))
        counts = _gathered(loop, [len(window), sum(portion.num_samples_global for portion in window)])
        for rank, (_, num_samples) in enumerate(counts):
            if counts[rank] != counts[0]:
                now = "at first" if is_first else "next"
                raise _other_samples(rank, f"rank {rank} finds {num_samples:.0f} samples in the stream {now}, rank 0 {counts[0][1]:.0f}")
        if not window:
            return
        if outlines := [portion.outline for portion in window if portion.outline is not None]:
            everyone = group.gathered(outlines)
            for rank, theirs in enumerate(everyone):
                if not all(map(is_same_stream, theirs, everyone[0])):
                    now = "" if is_first else " by now"
                    raise _other_samples(rank, f"rank {rank} reads other samples from the stream than rank 0{now}")
        is_first = False
        yield from window


def _gathered(loop: int, numbers: list[float]) -> list[list[float]]:
    """Every rank's numbers. Raises if a rank is in another loop: their steps would be taken together, and at the end one would wait."""
    everyone = group.gathered_numbers([loop, *numbers])
    for rank, (theirs, *_) in enumerate(everyone):
        if theirs != everyone[0][0]:
            summary = f"rank {rank} is in its loop number {theirs:.0f} over batches, rank 0 in number {everyone[0][0]:.0f}"
            why = "one of them left a loop, by `break`, or left it out, and the others did not"
            together = "decide on all ranks together: all_reduce the number that decides, then leave the loop or begin it"
            raise train_error("RW705", summary, rank, why=why, next=(together,))
    return [rest for _, *rest in everyone]


def _other_samples(rank: int, summary: str) -> TrainError:
    why = "each rank reads the whole stream and keeps its part: one that is split by rank, shuffled by a clock or skips samples loses some"
    whole = "give the loader the whole stream (nodesplitter=lambda shards: shards of a WebDataset), its generators seeded alike"
    own = "for one that each rank reads its own part of: step.over(DataLoader(dataset, …)), without the loader"
    return train_error("RW703", summary, rank, why=why, next=(whole, own))
