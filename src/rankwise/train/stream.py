"""Shards a dataset that can only be read from its beginning.

Every rank, and every worker of it, reads the whole stream and keeps its own part: the one way that needs nothing from the
dataset and still gives every sample to exactly one rank. The batches are cut as `SamplePlan` cuts those of a map-style dataset.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils import worker as worker_state

from rankwise.train.sample_plan import SamplePlan

Item = TypeVar("Item")
Outline = dict[str, list[float]]  # for each part of a sample, one number per sample that stands for its content
_OUTLINED = 64  # so many samples are enough to tell two streams apart
_OUTLINED_EVERY = 64  # one block in so many has an outline, and more at the beginning


class Portion(NamedTuple):
    """A batch of one rank, and the facts about it."""

    batch: Any
    num_rows: int  # rows in the batch; rows that only keep the ranks in step do not count
    num_samples: int  # samples that count
    num_samples_global: int  # samples that count on all ranks together
    first: int  # the place of its first sample in the epoch
    end: int  # where the samples known so far end; after that, samples are repeated
    outline: Outline | None = None  # of some blocks of a stream


@dataclass
class StreamShard(IterableDataset[Portion]):
    """One rank's portions of the stream, by a plan that does not know the stream's length."""

    stream: Iterable[Any]
    collate: Callable[[list[Any]], Any]
    plan: SamplePlan
    rank: int
    seed: int  # of the epoch, the same on every rank

    def __iter__(self) -> Iterator[Portion]:
        worker = get_worker_info()
        num_workers, me = (worker.num_workers, worker.id) if worker else (1, 0)
        worker_state._worker_info = None  # or a stream that splits itself among workers would be split twice, and most of it lost
        for number, (block, num_own) in enumerate(_drawn_alike(self._blocks(), self.seed)):
            if number % num_workers == me:  # the DataLoader asks its workers in turn, which keeps the order
                portion = self._portion(block, num_own, self.plan.done + number * self.plan.global_batch)
                is_outlined = not number & (number - 1) or number % _OUTLINED_EVERY == 0
                yield portion._replace(outline=outline(block[:_OUTLINED])) if is_outlined else portion

    def _blocks(self) -> Iterator[tuple[list[Any], int]]:
        """The stream in global batches, each with its number of samples that are not repeated; the last one by the rule of `uneven`."""
        plan, samples = self.plan, iter(self.stream)
        first = list(islice(samples, plan.world_size * plan.least))  # kept for padding
        samples = islice(chain(first, samples), plan.done, None)
        while block := list(islice(samples, plan.global_batch)):
            if len(block) == plan.global_batch:
                yield block, len(block)
            elif plan.uneven != "drop":
                whole = replace(plan, length=len(block), done=0)
                yield block + list(islice(cycle(first), whole.end - len(block))), len(block)

    def _portion(self, block: list[Any], num_own: int, first: int) -> Portion:
        share = replace(self.plan, length=len(block), uneven="join", done=0).share(0, self.rank)
        samples = [block[position] for position in share.positions]
        return Portion(self.collate(samples), len(samples), share.num_samples, len(block), first + share.positions.start, first + num_own)


def outline(samples: list[Any]) -> Outline:
    """Numbers that stand for the content of each sample: the mean of numbers, a checksum of text. Other parts are left out."""
    seen: Outline = {}
    for sample in samples:
        for path, number in _numbers(sample, ""):
            seen.setdefault(path, []).append(number)
    return seen


def is_same_stream(one: Outline, other: Outline) -> bool:
    """Whether any part of the samples comes in the same order in both: images may be changed at random on the way, labels are not.

    Fractions need only be nearly the same, because hosts round differently. A part that is the same in all samples proves nothing.
    """
    if not one or not other:
        return one == other
    telling = [path for path in {**one, **other} if len(set(one.get(path, []))) > 1 or len(set(other.get(path, []))) > 1]
    return not telling or any(_is_near(one.get(path, []), other.get(path, [])) for path in telling)


def _is_near(one: list[float], other: list[float]) -> bool:
    tolerance = 0.0 if all(number.is_integer() for number in one + other) else 1e-4
    return len(one) == len(other) and np.allclose(one, other, rtol=tolerance, atol=1e-6, equal_nan=True)


def _numbers(thing: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(thing, (str, bytes)):
        yield path, float(crc32(thing.encode() if isinstance(thing, str) else thing))
    elif isinstance(thing, (dict, list, tuple)):
        for key, value in thing.items() if isinstance(thing, dict) else enumerate(thing):
            yield from _numbers(value, f"{path}/{key}")
    elif isinstance(thing, (int, float, np.generic, np.ndarray, torch.Tensor)):
        with suppress(Exception):  # a part that has no mean is left out
            yield path, torch.as_tensor(thing).double().mean().item()


def _drawn_alike(items: Iterator[Item], seed: int) -> Iterator[Item]:
    """The items, drawn with a seed of the stream's own: a stream that shuffles has one order for all ranks and workers that read it."""
    outside = _generators()
    torch.default_generator.manual_seed(seed)  # the CPU's only: torch.manual_seed would also seed the GPUs' generators
    random.seed(seed)
    np.random.seed(seed % 2**32)
    while True:
        try:
            item = next(items)
        except StopIteration:
            return
        finally:
            inside = _generators()
            _set_generators(outside)
        yield item
        outside = _generators()
        _set_generators(inside)


def _generators() -> tuple[Any, ...]:
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def _set_generators(states: tuple[Any, ...]) -> None:
    of_torch, of_python, of_numpy = states
    torch.set_rng_state(of_torch)
    random.setstate(of_python)
    np.random.set_state(of_numpy)
