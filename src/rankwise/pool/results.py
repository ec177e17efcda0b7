"""A worker's answer as the caller gets it: arrays on lane memory where they are large, exceptions as they were raised."""

from __future__ import annotations

import pickle
from collections import deque
from typing import Any

import numpy as np

from rankwise.errors import RankwiseError
from rankwise.findings import Finding
from rankwise.pool.arena import Arena, Lease, Slot
from rankwise.pool.crew import Edge
from rankwise.pool.dtypes import CARRIED, NUMPY, torch_module
from rankwise.pool.parcel import as_array, carried, unwrap, widened
from rankwise.pool.segments import copy_into
from rankwise.pool.tasks import Task

_VIEW_BYTES = 64 << 10  # below, a copy is cheaper than keeping track


class OutputLane:
    """What leases of one worker's outputs need: where they are, and how to give them back. Outlives the worker."""

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self.leased_bytes = 0
        self._dropped: deque[int] = deque()  # finalizers add to it, wherever they run

    def address(self, place: tuple[Any, ...]) -> int:
        return int(self.edge.segments[place[1]].address + place[2])

    def has_room(self, nbytes: int, limit: int) -> bool:
        while self._dropped:
            self.leased_bytes -= self._dropped.popleft()
        return self.leased_bytes + nbytes <= limit

    def lease(self, place: tuple[Any, ...]) -> None:
        self.leased_bytes += place[3]

    def drop(self, place: tuple[Any, ...]) -> None:
        self._dropped.append(place[3])
        self.edge.page.mark(place[4], False)


class Reader:
    """Turns answers of one worker into values."""

    def __init__(self, edge: Edge, arena: Arena, soft_limit: int) -> None:
        self._lane, self._arena, self._soft_limit = OutputLane(edge), arena, soft_limit
        self._task: Task | None = None

    def value(self, task: Task, data: bytes) -> Any:
        self._task = task
        return unwrap(data, self._get)

    def _get(self, place: Any, dtype: str, shape: tuple[int, ...], as_tensor: bool) -> Any:
        assert self._task is not None
        as_tensor = as_tensor and (self._task.to_tensor or (dtype in CARRIED and dtype != "bfloat16"))
        if type(place) is bytes:
            return as_array(bytearray(place), dtype, shape, as_tensor)
        if place[0] == "i":
            array = self._of_input(place, dtype, shape, as_tensor)
        elif place[3] < _VIEW_BYTES or not self._lane.has_room(place[3], self._soft_limit // 2):
            array = self._copied(place, dtype, shape, as_tensor)
        else:
            self._lane.lease(place)
            array = Lease(self._lane, place, place[3]).array(dtype, shape, as_tensor)
        return widened(array, dtype) if dtype in CARRIED and not as_tensor else array

    def _copied(self, place: tuple[Any, ...], dtype: str, shape: tuple[int, ...], as_tensor: bool) -> Any:
        raw = self._lane.edge.segments[place[1]].view[place[2] : place[2] + place[3]]
        array: np.ndarray[Any, Any] = np.empty(shape, NUMPY[dtype])
        copy_into(array, raw.view(array.dtype).reshape(shape))
        self._lane.edge.page.mark(place[4], False)
        return _as_tensor(array, dtype) if as_tensor else array

    def _of_input(self, place: tuple[Any, ...], dtype: str, shape: tuple[int, ...], as_tensor: bool) -> Any:
        """The model gave (part of) its input back: the result stands on the same memory."""
        assert self._task is not None
        _, segment, offset, nbytes = place
        slot: Slot = next(s for s in self._task.slots if s.segment == segment and s.offset <= offset < s.offset + s.room)
        self._arena.hold(slot)
        return Lease(Part(self._arena, slot, offset - slot.offset), slot, nbytes).array(dtype, shape, as_tensor)


class Part:
    """A lease's owner for something that begins inside a slot."""

    __slots__ = ("_arena", "_skip")

    def __init__(self, arena: Arena, slot: Slot, skip: int) -> None:
        self._arena, self._skip = arena, skip

    def address(self, slot: Slot) -> int:
        return self._arena.address(slot) + self._skip

    def drop(self, slot: Slot) -> None:
        self._arena.drop(slot)


class RemoteTraceback(Exception):
    """The worker's traceback, shown as the cause of the exception that came from there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\nin the worker:\n{self.text}"


class ModelError(RankwiseError):
    """An exception of the model that cannot travel between processes; its text and traceback are in the message."""


def raised(payload: tuple[bytes, str], model: str) -> BaseException:
    """The exception as it was raised in the worker, with the worker's traceback as its cause."""
    data, text = payload
    error: BaseException | None = None
    try:
        found = pickle.loads(data) if data else None
        error = found if isinstance(found, BaseException) else None
    except Exception:  # its class cannot be had here
        pass
    if error is None:
        last = text.strip().splitlines()[-1] if text.strip() else "an exception"
        error = ModelError(Finding("RW805", "model-error", "error", True, f"model {model!r} raised {last}", why=text))
    error.__cause__ = RemoteTraceback(text)
    return error


def _as_tensor(array: np.ndarray[Any, Any], dtype: str) -> Any:
    torch = torch_module()
    if torch is None:
        return array
    return torch.from_numpy(array) if dtype not in CARRIED else carried(array, dtype, torch)
