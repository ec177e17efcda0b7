"""A request on its way to a worker, and its answer on the way back.

Inputs: large arrays go to shared memory, the rest into the message; rows are counted, cut and joined. Answers: arrays, on shared
memory where they are large. What a model raises travels by `exceptions`."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from rankwise.errors import RankwiseError, UsageError
from rankwise.pool.errors import Unsendable, lane_full
from rankwise.pool.memory.encoding import (
    ALIGNED,
    ARRAYS,
    COPIED_BYTES,
    INLINE_BYTES,
    NUMPY,
    EncodedInputs,
    Node,
    Put,
    as_array,
    each_leaf,
    each_node,
    exact_bytes,
    fitted,
    given,
    given_copies,
    joined,
    name_of_numpy,
    pack,
    stays_tensor,
    torch_module,
    unpack,
)
from rankwise.pool.memory.shared_memory import Arena, Segment, Slot, copy_into, forks, leased, rounded
from rankwise.sizes import bytes_text


class InputEncoder:
    """Encodes the inputs of a pool's tasks. There is one per pool; any thread may call it."""

    def __init__(self, arena: Arena, waiting_bytes: Callable[[], int]) -> None:
        self._arena, self._waiting_bytes = arena, waiting_bytes  # bytes of inputs whose tasks are not done

    def encode(self, model: str, inputs: Sequence[Any]) -> EncodedInputs:
        """The inputs as a node for the message, its size, what it holds of the lane, and whether tensors are wanted back."""
        plain = plain_array(inputs[0]) if len(inputs) == 1 else None  # what most requests are, by the shortest way
        if plain is None:
            return self._nested(model, inputs)
        value, tag, name = plain
        if value.nbytes <= INLINE_BYTES:
            data = value.tobytes()
            return ("(", ((tag, name, value.shape, data),)), len(data), (), tag == "T"
        slot = self._on_lane(model, value)
        return ("(", ((tag, name, value.shape, (slot.segment, slot.offset, value.nbytes)),)), 100, (slot,), tag == "T"

    def gather(self, first: np.ndarray[Any, Any], row_shape: tuple[int, ...], most_rows: int) -> GatheredRows | None:
        """Memory for rows like those of this array, which comes first: on the lane, unless they fit a message. None if there is no room,
        or if the array already lies on the lane."""
        shape, nbytes = (most_rows, *row_shape), first.itemsize * math.prod(row_shape) * most_rows
        if nbytes <= 4 * INLINE_BYTES:
            return GatheredRows(self._arena, None, shape, first.dtype)
        if self._arena.lent and first.ctypes.data in self._arena.lent:
            return None
        slot = self._arena.take(nbytes)
        return None if slot is None else GatheredRows(self._arena, slot, shape, first.dtype)

    def _nested(self, model: str, inputs: Sequence[Any]) -> EncodedInputs:
        try:
            node, size, slots = self.placed(lambda put: pack(tuple(inputs), put), partial(self._on_lane, model))
        except Unsendable as error:
            raise not_sendable(model, error) from error.__cause__
        return node, size, slots, torch_module() is not None and wants_tensors(inputs)

    def placed(self, make: Callable[[Put], Node], on_lane: Callable[[np.ndarray[Any, Any]], Slot]) -> tuple[Node, int, list[Slot]]:
        """The node that `make` makes, with its large arrays put on the lane by `on_lane`; its size, and what it holds there."""
        slots: list[Slot] = []

        def put(array: np.ndarray[Any, Any], owner: Any) -> Any:
            if array.nbytes <= INLINE_BYTES:
                return array.tobytes()
            slots.append(slot := on_lane(array))
            return (slot.segment, slot.offset, array.nbytes)

        try:
            return (*fitted(make(put), put), slots)
        except BaseException:
            for slot in slots:
                self._arena.drop(slot)
            raise

    def _on_lane(self, model: str, array: np.ndarray[Any, Any]) -> Slot:
        slot = self._arena.lent_slot(array) or self._arena.write(array)
        if slot is None:
            raise self.no_room(f"an input of model {model!r}", array.nbytes)
        return slot

    def no_room(self, what: str, nbytes: int) -> RankwiseError:
        """The error for memory that the lane does not have now, or can never have."""
        arena = self._arena
        if rounded(nbytes) > arena.limit_bytes:
            return UsageError(
                f"{what} takes {bytes_text(nbytes)}, more than ever fits the lane, which is {bytes_text(arena.limit_bytes)}",
                next=(f"a larger lane: Pool(..., lane_bytes={4 * nbytes})", "or smaller inputs"),
            )
        return lane_full(what, nbytes, arena.limit_bytes, arena.used_bytes(), self._waiting_bytes())


class GatheredRows:
    """Rows of several requests, side by side: on the lane for as long as this object lives, or for a message."""

    def __init__(self, arena: Arena, slot: Slot | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._arena, self._slot = arena, slot
        if slot is None:
            self._rows: np.ndarray[Any, Any] = np.empty(shape, dtype)
        else:
            self._rows = np.ndarray(shape, dtype, arena.segments[slot.segment].map, slot.offset)
        self._row_bytes = self._rows.nbytes // shape[0]
        self.most, self.count = shape[0], 0

    def add(self, rows: np.ndarray[Any, Any], count: int) -> int:
        """Append `count` rows; returns how many there are then."""
        end = self.count + count
        self._rows[self.count : end] = rows
        self.count = end
        return end

    def place(self, start: int, stop: int) -> bytes | tuple[int, int, int]:
        """The bytes of some of the rows, or their place on the lane."""
        if self._slot is None:
            return self._rows[start:stop].tobytes()
        return self._slot.segment, self._slot.offset + start * self._row_bytes, (stop - start) * self._row_bytes

    def lent(self, start: int, stop: int) -> tuple[bytes | tuple[int, int, int], int, tuple[Slot, ...]]:
        """Their `place`, their size in a message, and the slot, which is held once more for the task that gets it."""
        if self._slot is None:
            return self.place(start, stop), (stop - start) * self._row_bytes, ()
        self._arena.hold(self._slot)
        return self.place(start, stop), 100, (self._slot,)

    def __del__(self) -> None:
        if self._slot is not None:
            self._arena.drop(self._slot)


def plain_array(value: Any) -> tuple[np.ndarray[Any, Any], str, str] | None:
    """A tensor or an array as an array, with its tag and the name of its dtype; None for anything that is not plain memory."""
    tag = "N"
    if type(value) not in ARRAYS:
        torch = torch_module()
        if torch is None or type(value) is not torch.Tensor:
            return None
        try:
            value, tag = value.numpy(), "T"
        except (RuntimeError, TypeError):
            return None
    name = name_of_numpy(value.dtype)
    return (value, tag, name) if name else None


def travels_side_by_side(array: np.ndarray[Any, Any]) -> bool:
    """Whether arrays like this go to the lane as one where several are sent: too large for a message, but copied in no time, and each
    begins there where torch would let a tensor begin."""
    return INLINE_BYTES < array.nbytes <= COPIED_BYTES and not array.nbytes % ALIGNED


def not_sendable(model: str, error: Unsendable) -> UsageError:
    return UsageError(
        f"an input of model {model!r} cannot be sent to a worker: {error}",
        next=("give tensors, arrays, numbers, text, or lists, tuples and dicts of them; whatever else has to be picklable",),
    )


def is_one_array(node: Node) -> bool:
    return node[0] == "(" and len(node[1]) == 1 and node[1][0][0] in ("T", "N")


def rows_and_key(node: Node) -> tuple[int, Any]:
    """The rows that all arrays of a request share, and what else has to be the same for two requests to run together; (0, None) if
    there is nothing to cut."""
    if is_one_array(node):
        _, dtype, shape, _ = node[1][0]
        return (shape[0], (dtype, shape[1:])) if shape and shape[0] else (0, None)
    rows: set[int] = set()

    def outline(leaf: Node) -> Node:
        if leaf[0] in ("T", "N"):
            rows.add(leaf[2][0] if leaf[2] else 0)
            return ("T", leaf[1], leaf[2][1:])
        if leaf[0] == "S":  # may hold arrays that would not be cut
            rows.add(0)
        return leaf

    found = each_node(node, outline)
    count = rows.pop() if len(rows) == 1 else 0
    if not count or (count > 1 and any(_may_have_rows(item, count) for item in node[1])):
        return 0, None
    return count, exact_bytes(found)  # as keys of a dict, 1 and True would be the same


def _may_have_rows(node: Node, count: int) -> bool:
    """Whether this may have something for each of several rows, though it is no array of torch's: a list of as many values, or an object
    (an array of words, a DataFrame). It cannot be cut, and a part of the rows beside all of it would be another request."""
    if node[0] == "R":
        return True
    items = node[-1] if node[0] in ("[", "(", "{") else ()
    is_list = node[0] != "{" and len(items) == count and all(item[0] not in ("T", "N") for item in items)
    return is_list or any(_may_have_rows(item, count) for item in items)


def cut(node: Node, start: int, stop: int) -> Node:
    """The rows `start` to `stop` of a request, in the same memory."""

    def part(leaf: Node) -> Node:
        if leaf[0] not in ("T", "N"):
            return leaf
        tag, dtype, shape, place = leaf
        row = (len(place) if type(place) is bytes else place[2]) // shape[0]
        own = place[start * row : stop * row] if type(place) is bytes else (place[0], place[1] + start * row, (stop - start) * row)
        return (tag, dtype, (stop - start, *shape[1:]), own)

    return each_node(node, part)


def join_nodes(nodes: list[Node]) -> Node:
    """The rows of requests as one request; they have the same key, and their arrays lie in the message."""
    first = nodes[0]
    tag = first[0]
    if tag in ("T", "N"):
        return (tag, first[1], (sum([node[2][0] for node in nodes]), *first[2][1:]), b"".join([node[3] for node in nodes]))
    if tag in ("[", "("):
        return (tag, [join_nodes([node[1][i] for node in nodes]) for i in range(len(first[1]))])
    if tag == "{":
        return (tag, first[1], [join_nodes([node[2][i] for node in nodes]) for i in range(len(first[2]))])
    return first


def cut_value(value: Any, start: int, stop: int) -> Any:
    return each_leaf(value, lambda leaf: leaf[start:stop] if hasattr(leaf, "shape") else leaf)


def split(array: Any, edges: Sequence[int]) -> Sequence[Any]:
    if type(array) is np.ndarray:
        size = edges[1]
        if edges == list(range(0, len(edges) * size, size)):  # all alike: numpy makes such views in half the time
            return list(array.reshape(len(edges) - 1, size, *array.shape[1:]))
        return [array[start:stop] for start, stop in pairwise(edges)]
    return array.split([stop - start for start, stop in pairwise(edges)])  # type: ignore[no-any-return]


def join(parts: list[Any]) -> Any:
    """The results of the parts of one request as one: arrays joined along their rows. Raises Uneven if they do not make one."""
    return joined(parts, lambda leaf: hasattr(leaf, "shape"), _cat)


def _cat(arrays: list[Any]) -> Any:
    torch = torch_module()
    return torch.cat(arrays) if torch is not None and isinstance(arrays[0], torch.Tensor) else np.concatenate(arrays)


def wants_tensors(inputs: Sequence[Any]) -> bool:
    """Whether results come as tensors: they do unless all arrays among the inputs are numpy's."""
    if len(inputs) == 1 and not isinstance(inputs[0], (list, tuple, dict)):
        return type(inputs[0]) not in ARRAYS
    kinds = set(_kinds_of_arrays(inputs))
    return not kinds or not kinds <= ARRAYS


def _kinds_of_arrays(value: Any) -> Iterator[type]:
    if isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _kinds_of_arrays(item)
    elif hasattr(value, "dtype") and not isinstance(value, np.generic):
        yield type(value)


_WORTH = 4  # a result that is a part of its input may keep up to so many times its own size in memory


class Reader:
    """Turns answers of one worker into values. It outlives the worker while results lie on the worker's lane."""

    def __init__(
        self, segments: Sequence[Segment | OSError], free: Callable[[int], None], arena: Arena, soft_limit: int, slots: int
    ) -> None:
        self._segments, self._free, self._arena, self._limit = segments, free, arena, soft_limit // 2
        self._least_bytes = soft_limit // slots  # counted for each result, so that small ones too leave half of the slots free
        self._leased_bytes = 0
        self._ended: deque[int] = deque()  # bytes of leases that are over; finalizers add to it, in any thread

    def value(self, task: Any, node: Node) -> Any:
        if node[0] == "T" and task.to_tensor and type(node[3]) is bytes:  # what most results are, by the shortest way
            return given(np.ndarray(node[2], NUMPY[node[1]], bytearray(node[3])), node[1], True)
        return unpack(node, partial(self._get, task))

    def _get(self, task: Any, place: Any, dtype: str, shape: tuple[int, ...], is_tensor: bool) -> Any:
        is_tensor = is_tensor and stays_tensor(dtype, task.to_tensor)
        if type(place) is bytes:
            return as_array(bytearray(place), dtype, shape, is_tensor)
        array = self._of_input(task.slots, place, dtype, shape) if place[0] == "i" else self._of_lane(place, dtype, shape)
        return given(array, dtype, is_tensor)

    def even(self, task: Any, dtype: str, shape: tuple[int, ...], count: int, place: Any) -> list[Any]:
        """The results that a worker has sent as one."""
        if type(place) is bytes:
            return given_copies(dtype, shape, count, place, task.to_tensor)
        _, number, offset, _, slot = place
        values = given_copies(dtype, shape, count, self._segment(number).map, task.to_tensor, offset)
        self._free(slot)
        return values

    def _segment(self, number: int) -> Segment:
        segment = self._segments[number]
        if isinstance(segment, OSError):
            raise segment
        return segment

    def _of_lane(self, place: tuple[Any, ...], dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        _, number, offset, nbytes, slot = place
        segment = self._segment(number)
        counted = max(nbytes, self._least_bytes)
        if nbytes >= COPIED_BYTES and self._has_room(counted):
            return leased(segment, offset, dtype, shape, self._release, (slot, counted))
        array = _copied(segment, offset, dtype, shape)
        self._free(slot)
        return array

    def _has_room(self, nbytes: int) -> bool:
        forks.let_go()
        while self._ended:
            self._leased_bytes -= self._ended.popleft()
        if self._leased_bytes + nbytes > self._limit:
            return False
        self._leased_bytes += nbytes
        return True

    def _release(self, slot: tuple[int, int]) -> None:
        self._free(slot[0])
        self._ended.append(slot[1])

    def _of_input(self, slots: Sequence[Slot], place: tuple[Any, ...], dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """The model returned (part of) its input: the result uses the same memory, unless the arena needs that for other inputs."""
        _, number, offset, nbytes = place
        arena = self._arena
        for slot in slots:
            if slot.segment == number and slot.offset <= offset < slot.offset + slot.room:
                if slot.room > _WORTH * nbytes or 2 * arena.used_bytes() > arena.limit_bytes:
                    return _copied(arena.segments[number], offset, dtype, shape)
                arena.hold(slot)
                return leased(arena.segments[number], offset, dtype, shape, arena.drop, slot)
        raise LookupError("the worker named memory that is not the task's")


def _copied(segment: Segment, offset: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = np.empty(shape, NUMPY[dtype])
    copy_into(array, np.ndarray(shape, NUMPY[dtype], segment.map, offset))
    return array
