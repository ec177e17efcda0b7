"""Arrays of the user's that stand on lane memory: when the last of them is gone, the memory is used again."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from rankwise.pool.dtypes import CARRIED, NUMPY, torch_module
from rankwise.pool.parcel import carried
from rankwise.pool.segments import Segment


class _Lease(weakref.ref[Any]):
    """Watches the array that all views and tensors of this memory are based on."""

    __slots__ = ("release", "slot")
    release: Callable[[Any], None]
    slot: Any

    def __hash__(self) -> int:  # a reference's own hash is that of its array, which has none
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


_held: set[_Lease] = set()


def leased(
    segment: Segment, offset: int, dtype: str, shape: tuple[int, ...], release: Callable[[Any], None], slot: Any
) -> np.ndarray[Any, Any]:
    """An array on lane memory; `release(slot)` is called at its end, in whatever thread that is, so it must not wait for a lock."""
    array: np.ndarray[Any, Any] = np.ndarray(shape, NUMPY[dtype], segment.map, offset)
    lease = _Lease(array, _end)
    lease.release, lease.slot = release, slot
    _held.add(lease)
    return array


def to_tensor(array: np.ndarray[Any, Any], dtype: str) -> Any:
    """The same memory as a tensor."""
    torch = torch_module()
    if torch is None:
        return array
    return torch.from_numpy(array) if dtype not in CARRIED else carried(array, dtype, torch)


def _end(lease: _Lease) -> None:
    _held.discard(lease)
    lease.release(lease.slot)


# A forked child has copies of the arrays, but the memory is the parent's: what ends there ends nothing here.
os.register_at_fork(after_in_child=_held.clear)
