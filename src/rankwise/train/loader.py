"""A DataLoader for one rank's part of a dataset. It knows its place in the epoch."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, default_collate

from rankwise.errors import UsageError
from rankwise.train import batches, group
from rankwise.train.captured import seed_rng
from rankwise.train.errors import train_error
from rankwise.train.sample_plan import UNEVEN, SamplePlan, Uneven, epoch_order, mixed_seed
from rankwise.train.stream import Portion, StreamShard

log = logging.getLogger("rankwise.train")


class Loader:
    """Yields this rank's batches of a dataset.

    Every rank gets the same number of batches, every epoch has its own order, and `state_dict` says where the loader stands, in a way
    that also holds for another number of ranks. `batch_size` is that of one rank; `global_batch_size` that of all ranks
    together, which keeps the training the same when the number of ranks changes. `min_batch_size` is the fewest samples a rank
    may get in a step that has so many; without it, `Step.over` finds the number in the model, and it is 1 without a `Step`. Options
    beyond those named here (`num_workers`, `collate_fn`, `pin_memory` …) are the DataLoader's own.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int | None = None,
        *,
        global_batch_size: int | None = None,
        shuffle: bool = False,
        uneven: Uneven = "join",
        min_batch_size: int | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        **dataloader_options: Any,
    ) -> None:
        self.dataset = dataset
        self.shuffle, self.uneven, self.seed = shuffle, uneven, seed
        self.device = torch.device(device) if device is not None else None
        self.world_size, self.rank = group.world_size(), group.rank()
        self.global_batch = _global_batch(batch_size, global_batch_size, self.world_size)
        self.is_stream = isinstance(dataset, IterableDataset)
        self._min_batch_size, self.least = min_batch_size, min_batch_size or 1
        self._measure()
        self.epoch = 0
        self._trained: int | None = None  # the epoch that `epochs` is at
        self._in_turn: list[Loop] = []  # open loops that began in that epoch, the outer one first
        self._open_loops: list[Loop] = []  # all open loops; the one that took a batch last is at the end
        self._last_loop: Loop | None = None  # the loop that took a batch last, open or not
        self._options = dict(dataloader_options)
        self._worker_seeds = _WorkerSeeds(self._options.pop("worker_init_fn", None))
        self._generator = torch.Generator()
        self._dataloader: DataLoader[Any] | None = None
        self._begin_at = 0  # samples of the epoch that are done before reading begins, set by load_state_dict
        self.loop = Loop(0, self._plan_after(0))  # the loop that took a batch last, or the next one
        self._check()

    def __len__(self) -> int:
        """The number of batches in a whole epoch, the same on every rank."""
        if self.is_stream:
            raise TypeError("a stream has no length")
        self._measure()
        return self._plan_after(0).num_steps

    def __iter__(self) -> Iterator[Any]:
        """The batches of an epoch; a rank that has no sample left in the last step gets an empty batch."""
        for portion in self.portions():
            yield portion.batch if portion.num_samples else batches.emptied(portion.batch, portion.num_rows)

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """The epochs that are still to do, each with its own order, also after a `break` in one of them."""
        while self.epoch < num_epochs:
            epoch = self._trained = self.epoch
            self._in_turn = []
            try:
                yield epoch
            finally:
                self._trained = None
            self._begin(epoch + 1)

    def portions(self, *, trains: bool = False) -> Iterator[Portion]:
        """What `Step.over` iterates: a rank that has no sample left in the last step gets a portion that counts nothing."""
        self._check_ranks()
        self._measure()
        done, self._begin_at = self._begin_at, 0
        order = epoch_order(self.length, self.seed, self.epoch) if self.shuffle else range(self.length)
        loop = self.loop = Loop(self.epoch, self._plan_after(done), order, trains)
        self._worker_seeds.seed = mixed_seed(self.seed, loop.epoch, done, self.rank)
        self._generator.manual_seed(self._worker_seeds.seed)  # gives workers their `get_worker_info().seed`
        in_turn = self._in_turn
        in_turn.append(loop)
        try:
            for portion in self._streamed() if self.is_stream else self._planned(loop):
                if loop in self._open_loops:
                    self._open_loops.remove(loop)
                self._open_loops.append(loop)
                self.loop = self._last_loop = loop  # a loop over this loader inside of this one has its own
                self.epoch = loop.epoch
                loop.num_taken += 1
                loop.portion = portion if self.device is None else portion._replace(batch=batches.moved(portion.batch, self.device))
                yield loop.portion
        except GeneratorExit:
            if loop.num_taken == 1:  # `next(iter(loader))` only looks, and uses nothing up
                self._begin_at = done
            elif not self.is_stream and loop.num_done == loop.plan.num_steps:  # read to its end, not further, as `zip` of two loaders does
                self._begin(loop.epoch + 1)
            else:
                self.loop, self.epoch = loop, loop.epoch
            raise
        finally:
            in_turn.remove(loop)
            if loop in self._open_loops:
                self._open_loops.remove(loop)
        loop.is_read = True
        if loop.num_done == loop.num_taken:
            self._begin(loop.epoch + 1)

    def note_stepped(self, loop: Loop) -> None:
        """A window of `Step` is complete with the batch that this loop took last; the loop may have been read to the epoch's end."""
        loop.num_stepped = loop.num_taken
        if loop.is_read:
            self._begin(loop.epoch + 1)

    def suit(self, least: int) -> None:
        """Give no rank fewer samples than this from the next epoch on, if a step has enough and the caller set no `min_batch_size`."""
        least = self._min_batch_size or least
        if least != self.least or self._min_batch_size:
            self.least = least
            self._warn_of_small_steps()

    def _warn_of_small_steps(self) -> None:
        rest, idle = self.length % self.global_batch, self.world_size - max(1, self.global_batch // self.least)
        if self.rank or self.least == 1:
            return
        if idle > 0:
            said = "%d samples in a step, at least %d for a rank: %d of %d ranks get none in any step"
            log.warning(said, self.global_batch, self.least, idle, self.world_size)
        if 0 < rest < self.least and self.uneven == "join":
            said = "the last step of an epoch has %d samples, where the model's layers want %d; uneven='drop' leaves it out"
            log.warning(said, rest, self.least)

    def loop_of_output(self, known: Loop | None) -> Loop:
        """The loop whose batch is being worked on: the known one while it is open, otherwise the loop that took a batch last."""
        if known in self._open_loops:
            return known
        return self._open_loops[-1] if self._open_loops else self._last_loop or self.loop

    def indices_of(self, loop: Loop) -> list[int]:
        """The samples of the dataset in the batch that the loop took last, without samples that do not count."""
        if loop.portion is None:
            return []
        first, num_samples, end = loop.portion.first, loop.portion.num_samples, loop.portion.end
        return _indices_at(range(first, first + num_samples), range(end) if self.is_stream else loop.order)

    def state_dict(self) -> dict[str, Any]:
        loop = self._loop_to_resume()
        epoch, done = (self.epoch, self._done(self.loop)) if loop is None else (loop.epoch, self._done(loop))
        if loop is None and self._trained is not None and epoch > self._trained:  # a whole epoch was read after its own, for evaluation
            epoch, done = self._trained + 1, 0
        return {"epoch": epoch, "done": done, "seed": self.seed, "length": self.length, "shuffle": self.shuffle}

    def _loop_to_resume(self) -> Loop | None:
        """The loop to resume among several open ones: that of `Step.over`, or the outer one; None to resume the one that is `self.loop`."""
        if self._trained is None:
            return next((loop for loop in reversed(self._open_loops) if loop.trains), None)
        mine = [loop for loop in self._in_turn if loop.epoch == self._trained]
        # a loop with a single batch may have been a mere look, whose iterator is still referenced
        likely = [loop for loop in mine if loop.trains] or [loop for loop in mine if loop.num_taken > 1] or mine
        return next(iter(likely), None)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the state was taken; the number of ranks and the batch size may have changed."""
        ours = {"length": self.length, "shuffle": self.shuffle}
        if other := {name: (state[name], value) for name, value in ours.items() if state[name] != value}:
            said = ", ".join(f"{name} {then!r} then, {now!r} now" for name, (then, now) in other.items())
            raise train_error("RW703", f"the position was taken in another dataset: {said}")
        self.seed, self.epoch, self._begin_at = int(state["seed"]), int(state["epoch"]), int(state["done"])
        self.loop = Loop(self.epoch, self._plan_after(self._begin_at))

    def check_agreement(self) -> None:
        """Raise unless all ranks cut the same samples in the same way; all of them call this at the beginning of an epoch."""
        self._measure()
        facts: dict[str, Any] = {"samples": self.length, "samples in a step": self.global_batch, "epoch": self.epoch, "seed": self.seed}
        facts |= {"fewest samples of a rank": self.least, "samples done": self._begin_at}
        facts |= {"shuffle": self.shuffle, "uneven": self.uneven}
        if isinstance(self.dataset, Subset) and (indices := np.asarray(self.dataset.indices)).dtype.kind in "iu":
            facts["checksum of the Subset's indices"] = crc32(indices.astype(np.int64).tobytes())  # random_split may draw by rank
        everyone = group.gathered(facts, "step.over(loader)")
        for rank, theirs in enumerate(everyone):
            for name, value in theirs.items():
                if value != everyone[0][name]:
                    raise train_error("RW703", f"rank {rank} has {name} = {value}, rank 0 has {everyone[0][name]}", rank)

    def _planned(self, loop: Loop) -> Iterator[Portion]:
        """The portions of a map-style dataset, of which each rank fetches only its own."""
        options = self._dataloader_options()
        if self._dataloader is None:  # kept, so that persistent workers are kept
            self._dataloader = DataLoader(self.dataset, batch_sampler=_OwnIndices(self), **options)
        dataloader = self._dataloader
        if options.get("persistent_workers") and self._open_loops:  # they begin anew for each loop, and other loops may read from them
            dataloader = DataLoader(self.dataset, batch_sampler=_OwnIndices(self), **{**options, "persistent_workers": False})
        plan = loop.plan
        for step, batch in enumerate(_begun(dataloader)):
            share = plan.share(step, self.rank)
            yield Portion(batch, len(share.positions), share.num_samples, plan.step_size(step), share.positions.start, self.length)

    def _streamed(self) -> Iterator[Portion]:
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(self.epoch)
        options = self._dataloader_options()
        collate = options.pop("collate_fn", None) or default_collate
        shard = StreamShard(self.dataset, collate, self.loop.plan, self.rank, mixed_seed(self.seed, self.epoch))  # type: ignore[arg-type]
        yield from _begun(DataLoader(shard, batch_size=None, collate_fn=_unchanged, **options))

    def _dataloader_options(self) -> dict[str, Any]:
        """The user's options, with a generator of our own, so that the DataLoader does not draw from the one the model uses."""
        return {**self._options, "worker_init_fn": self._worker_seeds, "generator": self._generator}

    def _measure(self) -> None:
        """Count the samples; a dataset may grow or shrink between epochs."""
        self.length = 0 if self.is_stream or not hasattr(self.dataset, "__len__") else len(self.dataset)

    def _begin(self, epoch: int) -> None:
        self.epoch, self._begin_at, self.loop = epoch, 0, Loop(epoch, self._plan_after(0))

    def _plan_after(self, done: int) -> SamplePlan:
        return SamplePlan(self.length, self.global_batch, self.world_size, self.uneven, done, self.least)

    def _done(self, loop: Loop) -> int:
        return loop.plan.done + loop.num_done * self.global_batch if self.is_stream else loop.plan.done_after(loop.num_done)

    def _check_ranks(self) -> None:
        if (now := group.world_size()) != self.world_size:
            summary = f"the loader was made where there were {self.world_size} rank(s), and now there are {now}"
            raise UsageError(summary, next=("make the loader inside `with rankwise.session()`, after the process group",))

    def _check(self) -> None:
        if not self.is_stream and not (hasattr(self.dataset, "__getitem__") and hasattr(self.dataset, "__len__")):
            raise UsageError(
                f"the dataset is a {type(self.dataset).__name__}, without samples by number (__getitem__) or their number (__len__)",
                next=(
                    "give the dataset itself, not its DataLoader, or a torch.utils.data.IterableDataset",
                    "step.over(…) takes anything that can be iterated, without a Loader",
                ),
            )
        if self.uneven not in UNEVEN:
            raise UsageError(f"uneven={self.uneven!r}", next=(f"one of {', '.join(map(repr, UNEVEN))}",))
        if self._min_batch_size is not None and (type(self._min_batch_size) is not int or self._min_batch_size < 1):
            raise UsageError(f"min_batch_size={self._min_batch_size!r}: a rank's batch has at least one sample")
        if taken := {"batch_sampler", "sampler", "drop_last", "generator"} & self._options.keys():
            raise UsageError(
                f"{', '.join(sorted(taken))} cannot be given: the loader decides who gets which sample",
                next=(
                    "use shuffle=, seed= and uneven=",
                    "with a sampler of your own, by rank: step.over(DataLoader(…))",
                ),
            )
        if not self._options.get("in_order", True):
            raise UsageError("in_order=False cannot be given: all ranks must take the same step's samples at the same time")
        if self.is_stream and self.shuffle:
            raise UsageError(
                "a stream cannot be shuffled here: only its beginning can be read",
                next=("shuffle in the dataset; its set_epoch is called",),
            )
        if self.is_stream and getattr(getattr(self.dataset, "_distributed", None), "world_size", 1) > 1:  # Hugging Face's
            raise UsageError(
                "the stream was already split by node: the loader would leave out most of its samples",
                next=("give the loader the whole stream, or leave out the loader: step.over(DataLoader(dataset, …))",),
            )
        if self.is_stream and self._options.get("persistent_workers"):
            raise UsageError("persistent_workers would keep a stream's old position", next=("leave it out",))
        if self.uneven == "drop" and 0 < self.length < self.global_batch:
            raise UsageError(
                f"uneven='drop' leaves nothing: {self.length} samples, {self.global_batch} in a step of all ranks",
                next=("use 'join' or 'pad', or smaller batches",),
            )


@dataclass(eq=False)
class Loop:
    """The place of one of several loops over a loader."""

    epoch: int
    plan: SamplePlan
    order: torch.Tensor | range = range(0)
    trains: bool = False
    num_taken: int = 0
    num_stepped: int = 0  # batches among them in complete windows, if it trains
    is_read: bool = False  # whether it was read to its end
    portion: Portion | None = None  # the one that it took last

    @property
    def num_done(self) -> int:
        """How many batches need not be read again. A batch that waits for its loss, or for the rest of its window, has not trained yet."""
        return self.num_stepped if self.trains else self.num_taken


class _OwnIndices:
    """The batch sampler: the samples that this rank fetches in each step of the loop that begins."""

    def __init__(self, loader: Loader) -> None:
        self._loader: Loader = weakref.proxy(loader)  # so that persistent workers end with the loader

    def __iter__(self) -> Iterator[list[int]]:
        loop = self._loader.loop  # read once: a loop inside of this one may be in another epoch
        for step in range(loop.plan.num_steps):
            yield _indices_at(loop.plan.share(step, self._loader.rank).positions, loop.order)

    def __len__(self) -> int:
        return self._loader.loop.plan.num_steps


def _indices_at(positions: range, order: torch.Tensor | range) -> list[int]:
    """The samples at these positions of the epoch's order; beyond its end, samples are repeated."""
    if positions.stop > len(order):
        return [int(order[position % len(order)]) for position in positions]
    part = order[positions.start : positions.stop]
    return part.tolist() if isinstance(part, torch.Tensor) else list(part)


class _WorkerSeeds:
    """Seeds each worker process with a number of its own over all ranks, then calls the user's function."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self.seed, self.then = 0, then

    def __call__(self, worker_id: int) -> None:
        seed_rng(self.seed, worker_id)
        if self.then is not None:
            self.then(worker_id)


def _begun(dataloader: DataLoader[Any]) -> Iterator[Any]:
    """The DataLoader's iterator, which draws a seed where our generator is, on the CPU, and forks workers, which may not use a GPU."""
    has_other_default = torch.empty(0).device.type != "cpu"  # torch.set_default_device("cuda")
    with torch.device("cpu") if has_other_default else nullcontext():
        return iter(dataloader)


def _unchanged(portion: Any) -> Any:
    return portion


def _global_batch(batch_size: int | None, global_batch_size: int | None, world_size: int) -> int:
    if (batch_size is None) == (global_batch_size is None):
        raise UsageError("give batch_size (of one rank) or global_batch_size (of all ranks together), one of them")
    size = batch_size * world_size if batch_size is not None else global_batch_size
    if not isinstance(size, int) or size < 1:
        given = f"batch_size={batch_size!r}" if batch_size is not None else f"global_batch_size={global_batch_size!r}"
        raise UsageError(f"{given}: a batch needs at least one sample")
    return size
