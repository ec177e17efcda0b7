"""Rank and size of the process group (one rank, number 0, if there is no group), and work that only rank 0 does.

In `rank_zero` the other ranks wait at the store, beside the process group, so no timeout of a collective counts. The result goes through
the store as well. A collective here would often be a job's last one, and gloo (torch 2.13) can deadlock when a group is freed within
milliseconds of one: its thread then waits for the GIL, which the main thread holds while it waits for that thread.
"""

from __future__ import annotations

import pickle
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import FunctionType
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from rankwise.errors import TrainError, text_of_error
from rankwise.train.errors import train_error
from rankwise.train.store_client import pauses_s

Result = TypeVar("Result")
_POLL_S = (0.001, 0.25)  # the first and the longest pause between two looks
_PART_BYTES = 4 << 20  # torch's store closes the connection at values of more than 8 MiB
_here = threading.local()  # `works_alone` is True while this thread does work of rank 0 only
wrappers: weakref.WeakSet[Any] = weakref.WeakSet()  # the models that `wrap` has put into DDP
_names: weakref.WeakKeyDictionary[Any, Iterator[str]] = weakref.WeakKeyDictionary()


def is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    return dist.get_rank() if is_distributed() else 0


def world_size() -> int:
    return dist.get_world_size() if is_distributed() else 1


def gathered(thing: Any, call: str = "") -> list[Any]:
    """Every rank's `thing`, in the order of the ranks. All ranks must call this, in the same `call` of the user's."""
    if world_size() == 1:
        return [thing]
    _check_all_are_here()
    things: list[Any] = [None] * world_size()
    dist.all_gather_object(things, (call, thing))
    for rank, (theirs, _) in enumerate(things):
        if theirs != things[0][0]:
            raise _left_out(f"rank {rank} is in {theirs or 'another call'}, rank 0 in {things[0][0] or 'another call'}")
    return [theirs for _, theirs in things]


def _left_out(summary: str) -> TrainError:
    return train_error("RW208", summary, why="all ranks must make both calls, in the same order, and some have left one out")


def gathered_numbers(numbers: list[float]) -> list[list[float]]:
    """Every rank's numbers, in one collective. All ranks must call this, with equally many numbers."""
    if world_size() == 1:
        return [numbers]
    _check_all_are_here()
    mine = torch.tensor(numbers, dtype=torch.float64, device="cuda" if "nccl" in str(dist.get_backend()) else "cpu")
    everyone = [torch.empty_like(mine) for _ in range(world_size())]
    dist.all_gather(everyone, mine)
    return [theirs.tolist() for theirs in everyone]


def rank_zero(work: Callable[[], Result]) -> Result:
    """Call `work` on rank 0. Every rank gets its result, or an error if it raised one. All ranks must call this."""
    if world_size() == 1 or getattr(_here, "works_alone", False):  # inside other work of rank 0, where the other ranks make no such call
        return work()
    store: Any = dist.distributed_c10d._get_default_store()
    key = _next_name()
    if rank() != 0:
        return _published(store, key, _name_of(work))  # type: ignore[no-any-return]
    try:
        with _alone():
            result = work()
        packed = pickle.dumps((_name_of(work), True, result))
    except BaseException as error:
        _publish(store, key, pickle.dumps((_name_of(work), False, f"{type(error).__name__}: {text_of_error(error)}")))
        raise
    _publish(store, key, packed)
    return result


@contextmanager
def _alone() -> Iterator[None]:
    """Work without the other ranks: a wrapped model sends no buffers. They are rank 0's anyway, and nobody would receive them."""
    sending = [wrapper for wrapper in wrappers if wrapper.require_forward_param_sync]
    for wrapper in sending:
        wrapper.require_forward_param_sync = False
    _here.works_alone = True
    try:
        yield
    finally:
        _here.works_alone = False
        for wrapper in sending:
            wrapper.require_forward_param_sync = True


def _name_of(work: Callable[[], Any]) -> str:
    """What tells one function from another, the same on every rank; empty for methods: loggers may be other objects on other ranks."""
    return f"{work.__qualname__} (line {work.__code__.co_firstlineno})" if isinstance(work, FunctionType) else ""


def _check_all_are_here() -> None:
    if getattr(_here, "works_alone", False):
        summary = "a call that all ranks must make was made in work that rank_zero gave to rank 0 alone"
        why = "the others wait for that work to end, so they would never come"
        raise train_error("RW711", summary, 0, why=why, next=("make that call on all ranks, before rank_zero, and use its result there",))


def _publish(store: Any, key: str, packed: bytes) -> None:
    """Write to the store in parts that it accepts. The key itself is written last, and holds the number of parts."""
    parts = [packed[begin : begin + _PART_BYTES] for begin in range(0, len(packed), _PART_BYTES)]
    for number, part in enumerate(parts):
        store.set(f"{key}/{number}", part)
    store.set(key, str(len(parts)))


def _next_name() -> str:
    """A name that is the same on every rank, and different after a restart, because the launcher's store outlives the ranks."""
    job: Any = dist.group.WORLD
    if job not in _names:
        mine = gathered(uuid.uuid4().hex, "rank_zero()")[0]
        _names[job] = (f"rankwise/rank_zero/{mine}/{number}" for number in count())
    return next(_names[job])


def _published(store: Any, key: str, mine: str) -> Any:
    """Wait for rank 0's result and return it; the last rank that reads it removes it from the store."""
    pauses = pauses_s(*_POLL_S)
    while not store.check([key]):
        time.sleep(next(pauses))
    parts = [f"{key}/{number}" for number in range(int(store.get(key)))]
    theirs, succeeded, result = pickle.loads(b"".join(store.get(part) for part in parts))
    if store.add(f"{key}/read", 1) == world_size() - 1:
        for name in (key, f"{key}/read", *parts):
            store.delete_key(name)
    if theirs and mine and theirs != mine:
        raise _left_out(f"rank {rank()} is in rank_zero({mine}), rank 0 was in rank_zero({theirs})")
    if not succeeded:
        raise train_error("RW711", f"rank 0 failed in its own work: {result}", 0)
    return result
