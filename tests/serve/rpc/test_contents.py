"""Requests and answers in protobuf: raw contents or typed lists, and what is neither is refused in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc")

from rankwise.serve.errors import RequestError
from rankwise.serve.infer_request import InferResponse
from rankwise.serve.rpc.contents import read_infer, write_infer
from rankwise.serve.rpc.types import message

ModelInferRequest = message("inference.ModelInferRequest")


def request(*tensors: tuple[str, str, list[int], dict[str, Any]], raw: tuple[bytes, ...] = ()) -> Any:
    said = ModelInferRequest(model_name="m", id="7", raw_input_contents=raw)
    for name, datatype, shape, contents in tensors:
        tensor = said.inputs.add(name=name, datatype=datatype, shape=shape)
        for field, values in contents.items():
            getattr(tensor.contents, field).extend(values)
    return said


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("BOOL", "bool_contents", [True, False]),
        ("INT8", "int_contents", [-128, 127]),
        ("UINT16", "uint_contents", [0, 65535]),
        ("INT64", "int64_contents", [-(2**63), 2**63 - 1]),
        ("UINT64", "uint64_contents", [0, 2**64 - 1]),
        ("FP32", "fp32_contents", [0.5, -2.0]),
        ("FP64", "fp64_contents", [0.1, 1e300]),
        ("BYTES", "bytes_contents", [b"", b"\xff\x00"]),
    ],
)
def test_typed_lists_come_in_and_go_out_as_they_were(datatype: str, field: str, values: list[Any]) -> None:
    read, is_raw = read_infer(request(("x", datatype, [2, 1], {field: values})))
    said, array = read.inputs["x"]

    assert (said, array.shape, array.ravel().tolist(), is_raw) == (datatype, (2, 1), values, False)
    answer = write_infer(InferResponse("m", "1", "7", [("y", datatype, array)], {}), is_raw)
    (output,) = answer.outputs
    assert list(getattr(output.contents, field)) == values and list(output.shape) == [2, 1] and not answer.raw_output_contents


def test_raw_contents_come_in_and_go_out_raw() -> None:
    array = np.array([[1.0, 2.0]], np.float32)
    read, is_raw = read_infer(request(("x", "FP32", [1, 2], {}), raw=(array.tobytes(),)))

    assert is_raw and np.array_equal(read.inputs["x"][1], array) and read.id == "7"
    answer = write_infer(InferResponse("m", "1", "7", [("y", "FP32", array)], {}), is_raw)
    assert list(answer.raw_output_contents) == [array.tobytes()] and not answer.outputs[0].HasField("contents")


def test_where_one_output_has_no_typed_form_all_go_out_raw() -> None:
    half, whole = np.array([0.5], np.float16), np.array([1], np.int32)
    response = InferResponse("m", "1", "", [("a", "INT32", whole), ("b", "FP16", half)], {"sequence": 3})

    answer = write_infer(response, False)

    assert list(answer.raw_output_contents) == [whole.tobytes(), half.tobytes()]
    assert answer.parameters["sequence"].string_param == "3"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (request(("x", "FP32", [1], {"fp32_contents": [1.0]}), ("x", "FP32", [1], {"fp32_contents": [1.0]})), "'x' is there twice"),
        (request(("x", "FP32", [1], {}), ("y", "FP32", [1], {}), raw=(b"1234",)), "2 inputs were sent with 1 raw contents"),
        (request(("x", "FP32", [1], {"fp32_contents": [1.0]}), raw=(b"1234",)), "raw and typed contents"),
        (request(("x", "FP16", [1], {"fp32_contents": [1.0]})), "FP16 can only be sent as raw contents"),
        (request(("x", "FP32", [1], {"fp64_contents": [1.0]})), "FP32 belongs in fp32_contents, not in fp64_contents"),
        (request(("x", "FP128", [1], {})), "there is no datatype 'FP128'"),
        (request(("x", "FP32", [3], {"fp32_contents": [1.0]})), "input 'x': "),
        (request(("x", "BYTES", [3], {"bytes_contents": [b"a"]})), "[3] has 3 elements, but 1 were given"),
        (request(("x", "FP32", [-1], {"fp32_contents": [1.0]})), "input 'x': "),
        (request(("x", "FP32", [2], {}), raw=(b"1234",)), "input 'x': "),
        (request(("x", "INT8", [1], {"int_contents": [300]})), "input 'x': "),
    ],
)
def test_what_cannot_be_meant_is_refused(said: Any, why: str) -> None:
    with pytest.raises(RequestError) as refused:
        read_infer(said)

    assert why in str(refused.value)


def test_what_is_not_supported_is_refused_where_it_is_asked_for() -> None:
    said = request(("x", "FP32", [1], {"fp32_contents": [1.0]}))
    said.inputs[0].parameters["shared_memory_region"].string_param = "r"
    with pytest.raises(RequestError, match="input 'x': shared_memory_region is not supported"):
        read_infer(said)

    said = request()
    said.outputs.add(name="y").parameters["classification"].int64_param = 3
    with pytest.raises(RequestError, match="output 'y': classification is not supported"):
        read_infer(said)

    said = request()
    for _ in range(2):
        said.outputs.add(name="y")
    with pytest.raises(RequestError, match="asked for twice"):
        read_infer(said)


def test_parameters_have_the_type_they_were_sent_with() -> None:
    said = request()
    said.parameters["timeout"].int64_param = 5
    said.parameters["who"].string_param = "ada"
    said.parameters["is_urgent"].bool_param = True
    said.parameters["nothing"].SetInParent()

    assert read_infer(said)[0].parameters == {"timeout": 5, "who": "ada", "is_urgent": True, "nothing": ""}
