"""Shards a dataset that can only be read from its beginning.

Every rank, and every worker of it, reads the whole stream and keeps its own part: the one way that needs nothing from the
dataset and still gives every sample to exactly one rank. The batches are cut as `Plan` cuts those of a map-style dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, cycle, islice
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils import worker as worker_state

from rankwise.train.plan import Plan, Uneven, num_padding


class Portion(NamedTuple):
    """A batch of one rank, how many samples in it count, how many count on all ranks together, and where its first one stands."""

    batch: Any
    num_samples: int
    num_samples_global: int
    first: int


@dataclass
class StreamShard(IterableDataset[Portion]):
    """One rank's portions of the stream, after `done` samples of it."""

    stream: Iterable[Any]
    collate: Callable[[list[Any]], Any]
    global_batch: int
    world_size: int
    rank: int
    uneven: Uneven
    done: int = 0
    least: int = 1

    def __iter__(self) -> Iterator[Portion]:
        worker = get_worker_info()
        num_workers, me = (worker.num_workers, worker.id) if worker else (1, 0)
        worker_state._worker_info = None  # or a stream that shares its samples out among workers would be cut twice, and most of it lost
        for number, block in enumerate(self._blocks()):
            if number % num_workers == me:  # the DataLoader asks its workers in turn, so the order is kept
                yield self._portion(block, self.done + number * self.global_batch)

    def _blocks(self) -> Iterator[list[Any]]:
        """The stream in global batches; the last one as `uneven` wants it."""
        samples = iter(self.stream)
        first = list(islice(samples, self.world_size * self.least))  # kept for padding
        samples = islice(chain(first, samples), self.done, None)
        while block := list(islice(samples, self.global_batch)):
            if len(block) == self.global_batch:
                yield block
            elif self.uneven != "drop":
                rest = (len(block), self.global_batch, self.world_size, self.least)
                yield block + list(islice(cycle(first), num_padding(*rest) if self.uneven == "pad" else 0))

    def _portion(self, block: list[Any], first: int) -> Portion:
        share = Plan(len(block), self.global_batch, self.world_size, "join", least=self.least).share(0, self.rank)
        samples = [block[position] for position in share.positions]
        return Portion(self.collate(samples), share.num_samples, len(block), first + share.positions.start)
