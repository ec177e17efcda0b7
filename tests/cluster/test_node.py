"""Inputs and results as they travel: large arrays beside the message, everything else in it."""

from __future__ import annotations

import marshal
from typing import Any, NamedTuple

import numpy as np
import torch

from rankwise.cluster.node import decode_error, decode_value, encode, encode_error, encode_result, is_small, with_arrays_moved
from rankwise.pool.errors import Unsendable
from rankwise.pool.memory.encoding import unpack


class Pair(NamedTuple):
    a: Any
    b: Any


def test_large_arrays_travel_beside_the_message_and_come_back_as_they_were() -> None:
    value = {"small": torch.arange(3), "large": np.random.default_rng(0).random((100, 200)), "pair": Pair(torch.ones(200, 200), "x")}
    stored: list[Any] = []
    node, _, refs, to_tensor = encode("m", [value], lambda array: stored.append(array) or len(stored))

    assert len(refs) == len(stored) == 2 and to_tensor
    marshal.dumps(node, 2)
    moved: list[np.ndarray[Any, Any]] = []

    def put(data: np.ndarray[Any, Any]) -> Any:
        moved.append(data)
        return (len(moved) - 1, 0, data.nbytes)

    (found,) = unpack(
        with_arrays_moved(node, stored, put), lambda place, dtype, shape, is_tensor: _at(moved, place, dtype, shape, is_tensor)
    )
    assert torch.equal(found["small"], value["small"]) and np.array_equal(found["large"], value["large"])
    assert type(found["pair"]) is Pair and torch.equal(found["pair"].a, value["pair"].a)


def test_results_are_the_callers_own_memory() -> None:
    arrays: list[np.ndarray[Any, Any]] = []
    ok, node = encode_result(torch.zeros(300, 300), arrays)
    for array in arrays:
        array.flags.writeable = False  # as what stands in the object store is

    value = decode_value(node, arrays, to_tensor=True)
    value[0] = 1.0
    assert ok and float(value.sum()) == 300.0 and not arrays[0].any()


def test_an_exception_keeps_its_class_and_says_where_it_was_raised() -> None:
    ok, payload = encode_error(KeyError("no"))
    error = decode_error(payload, "m")

    assert not ok and isinstance(error, KeyError) and error.__cause__ is None
    assert not isinstance(error, Unsendable)


def test_one_small_array_needs_no_copy() -> None:
    assert is_small(encode("m", [torch.ones(4)], print)[0])
    assert not is_small(encode("m", [torch.ones(40_00)], print)[0])
    assert not is_small(encode("m", [{"a": 1}], print)[0])


def _at(arrays: list[Any], place: Any, dtype: str, shape: tuple[int, ...], is_tensor: bool) -> Any:
    if dtype == "raw":
        return arrays[place[0]].tobytes()
    array = np.frombuffer(arrays[place[0]].tobytes(), dtype).reshape(shape)
    return torch.from_numpy(array.copy()) if is_tensor else array
