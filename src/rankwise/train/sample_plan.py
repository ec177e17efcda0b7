"""Which samples each rank gets in each step of an epoch: arithmetic only, the same on every rank, so ranks need not communicate.

An epoch is one order of the dataset, cut into global batches, and each global batch is shared among the ranks. Progress is
counted in samples of that order; that number means the same on any number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

import torch

Uneven = Literal["join", "pad", "drop"]
UNEVEN = ("join", "pad", "drop")


@dataclass(frozen=True)
class Share:
    """One rank's part of one step: the places of its samples in the epoch's order, and how many of them count."""

    positions: range
    num_samples: int


@dataclass(frozen=True)
class SamplePlan:
    """The steps of one epoch after `done` samples of it.

    A last global batch that does not fill all ranks is shared as evenly as possible. With "join", a rank that gets nothing
    of it takes part with samples that do not count; "pad" repeats samples until all ranks have the same number; "drop"
    leaves that batch out. No rank gets fewer than `least` samples in a step that has so many: some layers cannot take one.
    """

    length: int
    global_batch: int
    world_size: int
    uneven: Uneven
    done: int = 0
    least: int = 1

    @cached_property
    def end(self) -> int:
        """The place in the epoch's order where the last step ends; beyond `length` if samples are repeated."""
        rest = (self.length - self.done) % self.global_batch
        if self.uneven == "drop":
            return self.length - rest
        if self.uneven == "pad":
            return self.length + num_padding(rest, self.global_batch, self.world_size, self.least)
        return self.length

    @cached_property
    def num_steps(self) -> int:
        return -(-max(0, self.end - self.done) // self.global_batch)

    def done_after(self, num_steps: int) -> int:
        """How many samples of the epoch are done after so many steps."""
        return min(self.done + num_steps * self.global_batch, self.length)

    def step_size(self, step: int) -> int:
        """How many samples count in this step, over all ranks."""
        return min(self.global_batch, self.end - self.done - step * self.global_batch)

    def share(self, step: int, rank: int) -> Share:
        first = self.done + step * self.global_batch
        size = self.step_size(step)
        num_takers = max(1, min(self.world_size, size // self.least))
        if rank >= num_takers or size == 0:
            return Share(range(first, first + max(1, min(self.least, size))), 0)
        begin, end = even_part(size, num_takers, rank)
        return Share(range(first + begin, first + end), end - begin)


def num_padding(rest: int, global_batch: int, world_size: int, least: int) -> int:
    """How many samples to repeat so that the `rest` of an epoch gives all ranks the same number; at most until the step is full."""
    if rest == 0:
        return 0
    each = -(-rest // world_size)
    wanted = (each if least * world_size > global_batch else max(each, least)) * world_size
    return min(wanted, global_batch) - rest


@cache
def even_part(total: int, num_parts: int, part: int) -> tuple[int, int]:
    """Begin and end of one of several consecutive parts. Sizes differ by at most one, and larger parts come first."""
    size, larger = divmod(total, num_parts)
    begin = part * size + min(part, larger)
    return begin, begin + size + (part < larger)


def epoch_order(length: int, seed: int, epoch: int) -> torch.Tensor:
    """The shuffled order of an epoch, which depends on these three numbers only."""
    generator = torch.Generator().manual_seed(mixed_seed(seed, epoch))
    return torch.randperm(length, generator=generator, device="cpu")


def mixed_seed(*numbers: int) -> int:
    """One seed made of several numbers; neighbouring numbers give unrelated seeds."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = ((state ^ number) * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**64
        state ^= state >> 31
    return state % 2**63
