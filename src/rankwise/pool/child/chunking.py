"""A chunk inside a worker: its requests one by one, and their results together again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rankwise.pool.chunks import EVEN, UNEVEN, each_of
from rankwise.pool.dtypes import name_of_numpy
from rankwise.pool.lease import to_tensor
from rankwise.pool.parcel import Get, Put, folded, pack, unpack

MOST_BYTES = 48_000  # of results, in one message: where there are more, the other requests run elsewhere, or later
_ROOM = 100  # bytes that a result takes besides its data


def requests_of(payload: tuple[Any, ...], get: Get) -> tuple[int, Callable[[int], Any]]:
    """How many there are, and the arguments of each by its place."""
    if payload[0] == EVEN:
        _, dtype, shape, count, data = payload
        each = [(to_tensor(array, dtype),) for array in each_of(data, dtype, shape, count)]
        return count, each.__getitem__
    nodes = payload[1]
    return len(nodes), lambda i: unpack(nodes[i], get)


class Gathering:
    """Results as they come. Each is copied at once: a model may return the same memory every time."""

    def __init__(self, put: Put, most_each: int) -> None:
        self._put, self._most_each = put, most_each
        self._data: list[bytes] = []  # of arrays that are all of one shape and type
        self._shape: tuple[int, ...] | None = None
        self._dtype: Any = None
        self._results: list[tuple[bool, Any]] | None = None  # where they are not
        self.size = 0  # bytes

    def add(self, value: Any) -> None:
        if self._results is None:
            if type(value) is torch.Tensor and (data := self._even(value)) is not None:
                self._data.append(data)
                self.size += len(data)
                return
            self._separate()
        node, size = folded(pack(value, self._put), self._put)
        self._append(True, node, size)

    def fail(self, packed: tuple[bytes, str]) -> None:
        if self._results is None:
            self._separate()
        self._append(False, packed, len(packed[0]) + len(packed[1]))

    def results(self) -> tuple[Any, ...]:
        """As they travel."""
        if self._results is not None or self._shape is None:
            return UNEVEN, self._results or []
        return EVEN, name_of_numpy(self._dtype), self._shape, len(self._data), b"".join(self._data)

    def _even(self, tensor: torch.Tensor) -> bytes | None:
        """Its bytes, if it is like those before."""
        try:
            array = tensor.numpy()
        except (RuntimeError, TypeError):  # whatever is not plain memory of this process
            return None
        if array.shape != self._shape or array.dtype is not self._dtype:
            if self._shape is not None or array.nbytes > self._most_each:
                return None
            self._shape, self._dtype = array.shape, array.dtype
        return array.tobytes()

    def _separate(self) -> None:
        """What has come so far, one by one."""
        self._results, self.size = [], 0
        for data in self._data:
            self._append(True, ("T", name_of_numpy(self._dtype), self._shape, data), len(data))

    def _append(self, ok: bool, answer: Any, size: int) -> None:
        assert self._results is not None
        self._results.append((ok, answer))
        self.size += _ROOM + size
