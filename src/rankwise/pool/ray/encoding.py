"""Inputs and outputs on their way through Ray: what is small travels inside the message, arrays that are large through the object store.

A place in a node is then the number of an array that travels beside the message, an offset in it, and the bytes there.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rankwise.pool.errors import Unsendable
from rankwise.pool.memory.encoding import INLINE_BYTES, NUMPY, EncodedInputs, Node, as_array, pack, stays_tensor, torch_module, unpack
from rankwise.pool.memory.requests import RemoteTraceback, not_sendable, pickled, raised, wants_tensors

LARGE_BYTES = 64 << 10  # from here on an array is worth an object of its own
_LONGEST = 20_000  # bytes of an exception, or of its traceback


def encode(model: str, inputs: Sequence[Any], store: Callable[[Any], Any]) -> EncodedInputs:
    """The inputs as a node; `store` puts an array into the object store and gives a reference, which the parcel holds."""
    refs: list[Any] = []

    def put(array: np.ndarray[Any, Any], owner: Any) -> Any:
        if array.nbytes < LARGE_BYTES:
            return array.tobytes()
        refs.append(store(_flat(array)))
        return (len(refs) - 1, 0, array.nbytes)

    try:
        node = pack(tuple(inputs), put)
    except Unsendable as error:
        raise not_sendable(model, error) from error.__cause__
    return node, 0, refs, torch_module() is not None and wants_tensors(inputs)


def with_arrays_moved(node: Node, arrays: Sequence[np.ndarray[Any, Any]], put: Callable[[np.ndarray[Any, Any]], Any]) -> Node:
    """The same node with its bytes elsewhere: `put` gets them, and gives their new place."""
    tag = node[0]
    if tag in ("T", "N"):
        return (tag, node[1], node[2], put(_bytes_at(node[3], arrays)))
    if tag in ("[", "("):
        return (tag, [with_arrays_moved(item, arrays, put) for item in node[1]])
    if tag == "{":
        return (tag, node[1], [with_arrays_moved(item, arrays, put) for item in node[2]])
    if tag == "P":
        return (tag, node[1], put(_bytes_at(node[2], arrays)))
    if tag == "S":  # its items are in there, as nodes
        hollow, items = marshal.loads(_bytes_at(node[2], arrays).tobytes())
        data = np.frombuffer(marshal.dumps((hollow, [with_arrays_moved(item, arrays, put) for item in items]), 2), np.uint8)
        return (tag, len(data), put(data))
    return node


class ResultEncoder:
    """Results on their way back: as nodes, with the large arrays beside them."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray[Any, Any]] = []

    def result(self, value: Any) -> tuple[bool, Any]:
        try:
            return True, pack(value, self._put)
        except Unsendable as error:  # came from the worker, so this is hardly seen
            return False, (pickled(error, _LONGEST), str(error))

    def failure(self, error: BaseException) -> tuple[bool, Any]:
        cause = error.__cause__
        text = cause.text if isinstance(cause, RemoteTraceback) else ""
        return False, (pickled(error, _LONGEST), text)

    def _put(self, array: np.ndarray[Any, Any], owner: Any) -> Any:
        if array.nbytes < LARGE_BYTES:
            return array.tobytes()
        self.arrays.append(_flat(array))
        return (len(self.arrays) - 1, 0, array.nbytes)


def decode_value(node: Node, arrays: Sequence[np.ndarray[Any, Any]], to_tensor: bool) -> Any:
    """What a result is for the caller: copies, which the caller may write to, whereas the object store's memory is everybody's."""

    def get(place: Any, dtype: str, shape: tuple[int, ...], is_tensor: bool) -> Any:
        data = bytearray(place) if type(place) is bytes else _bytes_at(place, arrays).copy()
        return as_array(data, dtype, shape, is_tensor and stays_tensor(dtype, to_tensor))

    return unpack(node, get)


def decode_error(payload: tuple[bytes, str], model: str) -> BaseException:
    error = raised(payload, model)
    if not payload[1]:
        error.__cause__ = None  # a finding: there is no traceback of the model's to show
    return error


def is_small(node: Node) -> bool:
    """One array that fits a worker's message as it is."""
    return node[0] == "(" and len(node[1]) == 1 and node[1][0][0] in ("T", "N") and _fits(node[1][0][3])


def _bytes_at(place: Any, arrays: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    return np.frombuffer(place, np.uint8) if type(place) is bytes else arrays[place[0]][place[1] : place[1] + place[2]]


def _fits(place: Any) -> bool:
    return type(place) is bytes and len(place) <= INLINE_BYTES


def _flat(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Its bytes in order; numpy's own types say nothing that the node does not."""
    return np.ascontiguousarray(array).reshape(-1).view(NUMPY["raw"])
