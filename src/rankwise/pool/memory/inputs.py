"""From what the caller submits to a task: arrays go to the lane, the rest into the message, rows are counted and large requests cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rankwise.errors import RankwiseError, UsageError
from rankwise.pool.errors import Unsendable, lane_full
from rankwise.pool.memory.encoding import INLINE_BYTES, EncodedInputs, Node, folded, name_of_numpy, pack, torch_module
from rankwise.pool.memory.nested import bits_of, each_leaf, joined
from rankwise.pool.memory.shared_memory import Arena, Slot, rounded
from rankwise.sizes import bytes_text


class InputEncoder:
    """One per pool; may be called from any thread."""

    def __init__(self, arena: Arena, waiting_bytes: Callable[[], int]) -> None:
        self._arena, self._waiting_bytes = arena, waiting_bytes  # of inputs whose tasks are not over

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

    def gather(self, first: np.ndarray[Any, Any], most_rows: int) -> GatheredRows | None:
        """Memory of the lane for rows like those of this array, or None where there is no room now, or the array lies there already."""
        if self._arena.lent and first.ctypes.data in self._arena.lent:
            return None
        slot = self._arena.take(first.nbytes // len(first) * most_rows)
        return None if slot is None else GatheredRows(self._arena, slot, (most_rows, *first.shape[1:]), first.dtype)

    def _nested(self, model: str, inputs: Sequence[Any]) -> EncodedInputs:
        slots: list[Slot] = []

        def put(array: np.ndarray[Any, Any], owner: Any) -> Any:
            if array.nbytes <= INLINE_BYTES:
                return array.tobytes()
            slots.append(slot := self._on_lane(model, array))
            return (slot.segment, slot.offset, array.nbytes)

        try:
            node, size = folded(pack(tuple(inputs), put), put)
        except BaseException as error:
            for slot in slots:
                self._arena.drop(slot)
            if isinstance(error, Unsendable):
                raise not_sendable(model, error) from error.__cause__
            raise
        return node, size, slots, torch_module() is not None and wants_tensors(inputs)

    def _on_lane(self, model: str, array: np.ndarray[Any, Any]) -> Slot:
        slot = self._arena.lent_slot(array) or self._arena.write(array)
        if slot is None:
            raise self.no_room(f"an input of model {model!r}", array.nbytes)
        return slot

    def no_room(self, what: str, nbytes: int) -> RankwiseError:
        """Why the lane did not take it: for the moment, or for good."""
        arena = self._arena
        if rounded(nbytes) > arena.limit_bytes:
            return UsageError(
                f"{what} takes {bytes_text(nbytes)}, more than ever fits the lane, which is {bytes_text(arena.limit_bytes)}",
                next=(f"a larger lane: Pool(..., lane_bytes={4 * nbytes})", "or smaller inputs"),
            )
        return lane_full(what, nbytes, arena.limit_bytes, arena.used_bytes(), self._waiting_bytes())


class GatheredRows:
    """Rows of several requests, side by side on the lane for as long as this object lives."""

    def __init__(self, arena: Arena, slot: Slot, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._arena, self._slot = arena, slot
        self._rows: np.ndarray[Any, Any] = np.ndarray(shape, dtype, arena.segments[slot.segment].map, slot.offset)
        self._row_bytes = self._rows.nbytes // shape[0]
        self.most, self.count = shape[0], 0

    def add(self, rows: np.ndarray[Any, Any], end: int) -> None:
        """Put rows behind the ones that are there; `end` is how many there are then."""
        self._rows[self.count : end] = rows
        self.count = end

    def lent(self, start: int, stop: int) -> tuple[tuple[int, int, int], Slot]:
        """Where some of the rows are, and the slot, held once more for the task that gets it."""
        self._arena.hold(self._slot)
        return (self._slot.segment, self._slot.offset + start * self._row_bytes, (stop - start) * self._row_bytes), self._slot

    def __del__(self) -> None:
        self._arena.drop(self._slot)


def plain_array(value: Any) -> tuple[np.ndarray[Any, Any], str, str] | None:
    """A tensor or an array as an array, with its tag and the name of its dtype; None for whatever needs a closer look."""
    tag = "N"
    if type(value) is not np.ndarray:
        torch = torch_module()
        if torch is None or type(value) is not torch.Tensor:
            return None
        try:
            value, tag = value.numpy(), "T"
        except (RuntimeError, TypeError):
            return None
    name = name_of_numpy(value.dtype)
    return (value, tag, name) if name else None


def not_sendable(model: str, error: Unsendable) -> UsageError:
    return UsageError(
        f"an input of model {model!r} cannot be sent to a worker: {error}",
        next=("give tensors, arrays, numbers, text, or lists, tuples and dicts of them; whatever else has to be picklable",),
    )


def is_one_array(node: Node) -> bool:
    """A request of one tensor or array."""
    return node[0] == "(" and len(node[1]) == 1 and node[1][0][0] in ("T", "N")


def rows_and_key(node: Node) -> tuple[int, Any]:
    """The rows all arrays of a request share, and what else has to be the same for two requests to run together; (0, None) where
    there is nothing to cut."""
    if is_one_array(node):
        _, dtype, shape, _ = node[1][0]
        return (shape[0], (dtype, shape[1:])) if shape and shape[0] else (0, None)
    rows: set[int] = set()

    def outline(node: Node) -> Any:
        tag = node[0]
        if tag in ("T", "N"):
            rows.add(node[2][0] if node[2] else 0)
            return ("T", node[1], node[2][1:])
        if tag in ("[", "("):
            return (tag, [outline(item) for item in node[1]])
        if tag == "{":
            return (tag, node[1], [outline(item) for item in node[2]])
        if tag == "S":  # may hold arrays that would not be cut
            rows.add(0)
        return node

    found = outline(node)
    if len(rows) != 1 or 0 in rows:
        return 0, None
    return rows.pop(), bits_of(found)  # a dict of keys would take 2 for True


def cut(node: Node, start: int, stop: int) -> Node:
    """Rows start to stop of a request, on the same memory."""
    tag = node[0]
    if tag in ("T", "N"):
        _, dtype, shape, place = node
        nbytes = len(place) if type(place) is bytes else place[2]
        row = nbytes // shape[0]
        part = place[start * row : stop * row] if type(place) is bytes else (place[0], place[1] + start * row, (stop - start) * row)
        return (tag, dtype, (stop - start, *shape[1:]), part)
    if tag in ("[", "("):
        return (tag, [cut(item, start, stop) for item in node[1]])
    if tag == "{":
        return (tag, node[1], [cut(item, start, stop) for item in node[2]])
    return node


def join_nodes(nodes: list[Node]) -> Node:
    """Requests of the same key whose arrays lie in the message: their rows in one."""
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
    """Rows start to stop of a result."""
    return each_leaf(value, lambda leaf: leaf[start:stop] if hasattr(leaf, "shape") else leaf)


def split(array: Any, edges: Sequence[int]) -> Sequence[Any]:
    """The rows of a tensor or array between each two edges."""
    if type(array) is np.ndarray:
        return [array[start:stop] for start, stop in pairwise(edges)]
    return array.split([stop - start for start, stop in pairwise(edges)])  # type: ignore[no-any-return]


def join(parts: list[Any]) -> Any:
    """The results of the parts of one request as one: arrays joined along their rows. Raises Uneven where they do not make one."""
    return joined(parts, lambda leaf: hasattr(leaf, "shape"), _cat)


def _cat(arrays: list[Any]) -> Any:
    torch = torch_module()
    return torch.cat(arrays) if torch is not None and isinstance(arrays[0], torch.Tensor) else np.concatenate(arrays)


def wants_tensors(inputs: Sequence[Any]) -> bool:
    """numpy in, numpy out; everything else gives tensors, where torch is there to make them."""
    if len(inputs) == 1 and not isinstance(inputs[0], (list, tuple, dict)):
        return type(inputs[0]) is not np.ndarray
    kinds = [type(item) for item in inputs]
    if any(issubclass(kind, (list, tuple, dict)) for kind in kinds):
        found = [_has_arrays_only(item) for item in inputs]
        return False in found or True not in found
    others = [kind for kind in kinds if kind is not np.ndarray and hasattr(kind, "dtype") and not issubclass(kind, np.generic)]
    return np.ndarray not in kinds or bool(others)


def _has_arrays_only(value: Any) -> bool | None:
    """True for numpy arrays, False as soon as there is a tensor, None where there is neither."""
    if type(value) is np.ndarray:
        return True
    if isinstance(value, (list, tuple, dict)):
        found = [_has_arrays_only(item) for item in (value.values() if isinstance(value, dict) else value)]
        return False if False in found else True if True in found else None
    return False if hasattr(value, "dtype") and not isinstance(value, np.generic) else None
