"""Work for one rank, of any length: the others wait beside the process group, where no timeout of a collective counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

import torch.distributed as dist

from rankwise.causes import load_cause
from rankwise.errors import TrainError
from rankwise.findings import Place
from rankwise.train import group

Result = TypeVar("Result")

_POLL_S = (0.001, 0.25)  # from quick to patient
_numbers = count()
_DONE = "done"


def rank_zero(work: Callable[[], Result]) -> Result:
    """Call `work` on rank 0; every rank gets what it returns, or an error if it raised one. All ranks must call this."""
    if group.world_size() == 1:
        return work()
    store = dist.distributed_c10d._get_default_store()
    key = f"rankwise/rank_zero/{next(_numbers)}"
    if group.rank() != 0:
        _wait(store, key)
        return group.from_rank_zero(None)  # type: ignore[no-any-return]
    try:
        result = work()
    except BaseException as error:
        store.set(key, f"{type(error).__name__}: {error}"[:1000])
        raise
    store.set(key, _DONE)
    return group.from_rank_zero(result)  # type: ignore[no-any-return]


def _wait(store: Any, key: str) -> None:
    pause_s, longest_s = _POLL_S
    while not store.check([key]):
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, longest_s)
    if (said := store.get(key).decode(errors="replace")) != _DONE:
        summary = f"rank 0 failed in its own work: {said}"
        raise TrainError(load_cause("RW711").finding(summary, certain=True, culprits=(Place(rank=0),)))
