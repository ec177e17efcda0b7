"""A worker's answer as the caller gets it: arrays on lane memory where they are large, exceptions as they were raised."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any, Protocol

import numpy as np

from rankwise.pool.errors import Unsendable, cannot_be_sent, model_raised
from rankwise.pool.memory.encoding import CARRIED, NUMPY, Node, as_array, stays_tensor, unpack, widened
from rankwise.pool.memory.shared_memory import Arena, Segment, copy_into, leased, to_tensor

# Raised where a caller waits for results, these would end its loop, or its task as if somebody had cancelled it.
NOT_IN_A_LOOP = (StopIteration, StopAsyncIteration, CancelledError)
_ELLIPSIS = " … "
_LEAST = 2000  # bytes; with fewer, a message that is cut says less than the end of the traceback


def pickled(error: BaseException, longest: int) -> bytes:
    """At most so many bytes; none where not even its class can travel."""
    text = _text(error)
    for form, is_exact in _forms(error, longest):
        try:
            data = pickle.dumps(form)
            found = pickle.loads(data)
            says = str(found)
            if len(data) <= longest and type(found) is type(error) and (says == text or not is_exact):
                return data
        except Exception:  # whatever its __reduce__, its __init__ or its __str__ does
            continue
    return b""


def revived(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """An exception without its __init__, which may want to be given something else than what it has made of it."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class _Bare:
    """Pickles as an exception that `revived` makes."""

    def __init__(self, error: BaseException, args: tuple[Any, ...], state: dict[str, Any]) -> None:
        self._parts = type(error), args, state

    def __reduce__(self) -> tuple[Any, ...]:
        return revived, self._parts


def _forms(error: BaseException, longest: int) -> Iterator[tuple[Any, bool]]:
    """Whole, then without its __init__, then with what of it can travel; and whether it has to say the same."""
    yield error, True
    yield _Bare(error, error.args, error.__dict__), True
    if longest < _LEAST:
        return
    state = {key: value for key, value in error.__dict__.items() if _bytes_of(value) <= longest // 16}
    for room in (longest // 2, longest // 8):  # a character takes up to four bytes
        yield _Bare(error, tuple([_cut(arg, room) for arg in error.args]), state), False
        yield _Bare(error, (_cut(_text(error), room),), state), False
        yield _Bare(error, (_cut(_text(error), room),), {}), False


def _bytes_of(value: Any) -> float:
    try:
        data = pickle.dumps(value)
        pickle.loads(data)
    except Exception:
        return float("inf")
    return len(data)


def _cut(value: Any, longest: int) -> Any:
    """Of a long text its beginning and its end, where most say what they have to."""
    return value[: longest // 2] + _ELLIPSIS + value[-longest // 2 :] if isinstance(value, str) and len(value) > longest else value


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return type(error).__name__


_VIEW_BYTES = 64 << 10  # below, a copy is cheaper than keeping track
_WORTH = 4  # a result may hold up to so many times its own size of the input it is a part of


class Wanted(Protocol):
    """What a result has to fit: the task it is of."""

    to_tensor: bool
    slots: Sequence[Any]


class Reader:
    """Turns answers of one worker into values. Outlives the worker, where results of it stand on its lane."""

    def __init__(self, segments: list[Segment], free: Callable[[int], None], arena: Arena, soft_limit: int) -> None:
        self._segments, self._free, self._arena, self._limit = segments, free, arena, soft_limit // 2
        self._leased_bytes = 0
        self._ended: deque[int] = deque()  # bytes of leases that are over; finalizers add to it, wherever they run
        self._task: Wanted | None = None

    def value(self, task: Wanted, node: Node) -> Any:
        if node[0] == "T" and task.to_tensor and type(node[3]) is bytes:  # what most results are, by the shortest way
            return as_array(bytearray(node[3]), node[1], node[2], True)
        self._task = task
        try:
            return unpack(node, self._get)
        finally:
            self._task = None  # it will know its result, which knows us

    def _get(self, place: Any, dtype: str, shape: tuple[int, ...], is_tensor: bool) -> Any:
        assert self._task is not None
        is_tensor = is_tensor and stays_tensor(dtype, self._task.to_tensor)
        if type(place) is bytes:
            return as_array(bytearray(place), dtype, shape, is_tensor)
        array = self._of_input(place, dtype, shape) if place[0] == "i" else self._of_lane(place, dtype, shape)
        if is_tensor:
            return to_tensor(array, dtype)
        return widened(array, dtype) if dtype in CARRIED else array

    def _of_lane(self, place: tuple[Any, ...], dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        _, number, offset, nbytes, slot = place
        segment = self._segments[number]
        if nbytes >= _VIEW_BYTES and self._has_room(nbytes):
            return leased(segment, offset, dtype, shape, self._release, (slot, nbytes))
        array: np.ndarray[Any, Any] = np.empty(shape, NUMPY[dtype])
        copy_into(array, np.ndarray(shape, NUMPY[dtype], segment.map, offset))
        self._free(slot)
        return array

    def _has_room(self, nbytes: int) -> bool:
        while self._ended:
            self._leased_bytes -= self._ended.popleft()
        if self._leased_bytes + nbytes > self._limit:
            return False
        self._leased_bytes += nbytes
        return True

    def _release(self, slot: tuple[int, int]) -> None:
        self._free(slot[0])
        self._ended.append(slot[1])

    def _of_input(self, place: tuple[Any, ...], dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """The model gave (part of) its input back: the result stands on the same memory, unless that is needed for inputs."""
        assert self._task is not None
        _, number, offset, nbytes = place
        arena = self._arena
        for slot in self._task.slots:
            if slot.segment == number and slot.offset <= offset < slot.offset + slot.room:
                if slot.room > _WORTH * nbytes or 2 * arena.used_bytes() > arena.limit_bytes:
                    array: np.ndarray[Any, Any] = np.empty(shape, NUMPY[dtype])
                    copy_into(array, np.ndarray(shape, NUMPY[dtype], arena.segments[number].map, offset))
                    return array
                arena.hold(slot)
                return leased(arena.segments[number], offset, dtype, shape, arena.drop, slot)
        raise LookupError("the worker named memory that is not the task's")


class RemoteTraceback(Exception):
    """The worker's traceback, shown as the cause of the exception that came from there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\nin the worker:\n{self.text}"


def raised(payload: tuple[bytes, str], model: str) -> BaseException:
    """The exception as it was raised in the worker, with the worker's traceback as its cause."""
    data, text = payload
    error: BaseException | None = None
    try:
        found = pickle.loads(data) if data else None
        error = found if isinstance(found, BaseException) and not isinstance(found, NOT_IN_A_LOOP) else None
    except Exception:  # its class cannot be had here
        pass
    if isinstance(error, Unsendable):
        error = cannot_be_sent(model, error)
    elif error is None:
        error = model_raised(model, text)
    error.__cause__ = RemoteTraceback(text)
    return error
