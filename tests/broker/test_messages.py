"""What travels is readable by any language, and whatever else arrives is refused with a reason."""

from __future__ import annotations

import base64
import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.broker.messages import (
    BINARY,
    JSON,
    Body,
    Malformed,
    Reply,
    Request,
    outputs_of,
    read_reply,
    read_request,
    write_reply,
    write_request,
)


def inline(raw: memoryview) -> None:
    return None


def nothing(ref: str) -> bytes:
    raise AssertionError(ref)


@pytest.mark.parametrize("content_type", [JSON, BINARY])
@pytest.mark.parametrize("dtype", ["?", "u1", "i8", "f2", "f4", "f8", ">f4"])
def test_a_request_comes_back_as_it_was_written(content_type: str, dtype: str) -> None:
    x = np.arange(6).reshape(2, 3).astype(dtype)
    written = write_request(Request("a", "m", (x, x[:0], np.float32(3)), 12.5, 7, 3), content_type, inline)
    read = read_request(written, nothing)
    assert (read.id, read.model, read.deadline, read.priority, read.seed) == ("a", "m", 12.5, 7, 3)
    assert [array.shape for array in read.inputs] == [(2, 3), (0, 3), ()]
    assert (read.inputs[0] == x).all() and read.inputs[0].flags.writeable


def test_json_by_hand_is_a_request() -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": base64.b64encode(np.float32([1, 2]).tobytes()).decode()}
    listed = {"name": "y", "datatype": "INT64", "shape": [2], "data": [3, 4]}
    read = read_request(Body(JSON, json.dumps({"id": "1", "model": "m", "inputs": [tensor, listed]}).encode()), nothing)
    assert read.inputs[0].tolist() == [[1, 2]] and read.inputs[1].tolist() == [3, 4]


def test_a_reply_keeps_names_and_nesting() -> None:
    outputs, structure = outputs_of({"a": np.ones(2), "b": 3})
    read = read_reply(write_reply(Reply("1", outputs, structure), BINARY, inline), nothing)
    assert read.structure == "dict" and list(read.outputs) == ["a", "b"] and read.outputs["b"] == 3
    with pytest.raises(TypeError, match="two names are '1' as text"):
        outputs_of({1: np.ones(2), "1": 3})


TENSOR = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}
GOOD: dict[str, Any] = {"id": "1", "model": "m", "inputs": [TENSOR]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": ""}, {"id": 5}, {"id": "x" * 500}, {"model": None}, {"inputs": []}, {"inputs": [TENSOR, TENSOR]}, {"inputs": "x"},
        {"parameters": {"deadline": "soon"}}, {"parameters": {"priority": 10}}, {"parameters": {"priority": True}}, {"parameters": []},
        {"inputs": [{**TENSOR, "datatype": "OBJECT"}]}, {"inputs": [{**TENSOR, "shape": [-1]}]}, {"inputs": [{**TENSOR, "shape": [2]}]},
        {"inputs": [{**TENSOR, "data": "????"}]}, {"inputs": [{**TENSOR, "data": None}]}, {"inputs": [{**TENSOR, "data": [{}]}]},
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}]},
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        read_request(Body(JSON, json.dumps({**GOOD, **wrong}).encode()), nothing)


def test_a_pickle_is_refused_and_not_read() -> None:
    with pytest.raises(Malformed, match="content type"):
        read_request(Body("application/x-python-serialize", pickle.dumps(GOOD)), nothing)


@given(st.binary(max_size=200), st.sampled_from([JSON, BINARY]), st.integers(-5, 300))
def test_any_bytes_are_refused_without_another_error(data: bytes, content_type: str, length: int) -> None:
    with pytest.raises(Malformed):
        read_request(Body(content_type, data, length), nothing)


@pytest.mark.parametrize(
    ("datatype", "data", "is_right"),
    [
        ("INT32", [1, -2], True), ("INT32", [1.5, 2], False), ("INT32", ["4", 4], False), ("INT8", [300, 1], False),
        ("BOOL", [True, False], True), ("BOOL", [0, 1], True), ("BOOL", [2, 0], False),
        ("UINT64", [1, 2**64 - 1], True), ("FP32", [1, 0.1], True), ("FP32", ["1", "2"], False),
    ],
)  # fmt: skip
def test_numbers_in_lists_have_to_be_values_of_the_type(datatype: str, data: list[Any], is_right: bool) -> None:
    said = {"id": "a", "model": "m", "inputs": [{"name": "x", "datatype": datatype, "shape": [2], "data": data}]}
    body = Body(JSON, json.dumps(said).encode())

    if is_right:
        assert read_request(body, nothing).inputs[0].tolist() == pytest.approx(data)
    else:
        with pytest.raises(Malformed):
            read_request(body, nothing)


def test_a_seed_of_zero_travels() -> None:
    request = Request("1", "m", (np.ones(1),), seed=0)

    assert read_request(write_request(request, JSON, inline), nothing).seed == 0
