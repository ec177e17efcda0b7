"""Work for one rank, of any length: the others wait at the store, beside the process group, where no timeout of a collective counts.

The result goes through the store as well. A collective here would often be a job's last one, and gloo (torch 2.13) can deadlock when a
group is freed within milliseconds of one: its thread then waits for the GIL, which the main thread holds while it waits for that thread.
"""

from __future__ import annotations

import pickle
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, TypeVar

import torch.distributed as dist

from rankwise.causes import load_cause
from rankwise.errors import TrainError
from rankwise.findings import Place
from rankwise.train import group

Result = TypeVar("Result")

_POLL_S = (0.001, 0.25)  # from quick to patient
_names: weakref.WeakKeyDictionary[Any, Iterator[str]] = weakref.WeakKeyDictionary()


def rank_zero(work: Callable[[], Result]) -> Result:
    """Call `work` on rank 0; every rank gets what it returns, or an error if it raised one. All ranks must call this."""
    if group.world_size() == 1:
        return work()
    store: Any = dist.distributed_c10d._get_default_store()
    key = _next_name()
    if group.rank() != 0:
        return _told(store, key)  # type: ignore[no-any-return]
    try:
        result = work()
        told = pickle.dumps((True, result))
    except BaseException as error:
        store.set(key, pickle.dumps((False, f"{type(error).__name__}: {error}")))
        raise
    store.set(key, told)
    return result


def _next_name() -> str:
    """The same on every rank, and on none of those that were here before a restart: the launcher's store outlives them."""
    job: Any = dist.group.WORLD
    if job not in _names:
        mine = group.gathered(uuid.uuid4().hex)[0]
        _names[job] = (f"rankwise/rank_zero/{mine}/{number}" for number in count())
    return next(_names[job])


def _told(store: Any, key: str) -> Any:
    """What rank 0 came to, once it is there; the last to have read it removes it."""
    pause_s, longest_s = _POLL_S
    while not store.check([key]):
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, longest_s)
    succeeded, told = pickle.loads(store.get(key))
    if store.add(f"{key}/read", 1) == group.world_size() - 1:
        store.delete_key(key)
        store.delete_key(f"{key}/read")
    if not succeeded:
        finding = load_cause("RW711").finding(f"rank 0 failed in its own work: {told}", certain=True, culprits=(Place(rank=0),))
        raise TrainError(finding)
    return told
