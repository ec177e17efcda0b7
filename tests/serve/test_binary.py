"""Bodies of JSON and raw tensors as requests, and answers as bodies."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from rankwise.protocol import TensorSpec
from rankwise.serve.answering import Answering
from rankwise.serve.binary import read_infer, read_json, write_infer
from rankwise.serve.errors import RequestError
from rankwise.serve.infer_request import InferRequest, InferResponse

RAW = np.arange(4, dtype="<f4").tobytes()


def tensor(name: str = "x", **said: Any) -> dict[str, Any]:
    return {"name": name, "datatype": "FP32", "shape": [1, 4], **said}


def plain(name: str = "x") -> dict[str, Any]:
    return tensor(name, data=[0, 1, 2, 3])


def raw(name: str = "x", size: Any = 16, **said: Any) -> dict[str, Any]:
    return tensor(name, parameters={"binary_data_size": size}, **said)


def read(said: Any, behind: bytes = b"") -> tuple[InferRequest, dict[str, bool]]:
    text = json.dumps(said).encode()
    return read_infer(text + behind, str(len(text)) if behind else None, None)


def model(*inputs: TensorSpec) -> Answering:
    made = Answering("net", "1", lambda text, name: None)
    made.inputs = inputs
    return made


def test_json_and_raw_tensors_are_the_same_request() -> None:
    request, _ = read({"id": "7", "inputs": [plain("a"), raw("b"), raw("c")], "parameters": {"priority": 1}}, RAW + RAW)

    assert (request.id, request.parameters, list(request.inputs)) == ("7", {"priority": 1}, ["a", "b", "c"])
    assert all(datatype == "FP32" and array.tolist() == [[0, 1, 2, 3]] for datatype, array in request.inputs.values())


def test_a_body_without_json_is_one_row_of_the_only_input() -> None:
    request, wanted = read_infer(RAW, "0", model(TensorSpec("x", "FP32", (-1, 4))))

    assert request.inputs["x"][1].shape == (1, 4)
    assert wanted == {"": True}


@pytest.mark.parametrize(
    ("of", "body", "said"),
    [
        (None, RAW, "has not exactly one input"),
        (model(), RAW, "model 'net' has not exactly one input"),
        (model(TensorSpec("x", "FP32", (4,)), TensorSpec("y", "FP32", (4,))), RAW, "has not exactly one input"),
        (model(TensorSpec("x", "FP32", (-1, -1))), RAW, "shape of input 'x' is not known"),
        (model(TensorSpec("x", "BYTES", (1,))), RAW, "shape of input 'x' is not known"),
        (model(TensorSpec("x", "FP32", (-1, 4))), RAW + RAW, "takes 16 bytes, but 32 were given"),
    ],
)
def test_a_body_without_json_has_to_be_clear(of: Answering | None, body: bytes, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        read_infer(body, "0", of)


@pytest.mark.parametrize("length", ["-1", "1.0", "", "x", "²", "5", "9" * 19])
def test_the_length_of_the_json_has_to_be_a_number_within_the_body(length: str) -> None:
    with pytest.raises(RequestError, match="must be a number of at most 4"):
        read_infer(b"null", length, None)


def test_the_json_may_be_all_of_the_body() -> None:
    text = json.dumps({"inputs": [plain()]}).encode()

    assert list(read_infer(text, str(len(text)), None)[0].inputs) == ["x"]


@pytest.mark.parametrize(
    ("said", "behind", "why"),
    [
        ([], b"", "has to be a JSON object"),
        ({"inputs": {}}, b"", "needs a list of inputs"),
        ({}, b"", "needs a list of inputs"),
        ({"inputs": [], "id": 7}, b"", "id has to be a text"),
        ({"inputs": [], "id": "\ud800"}, b"", "id has to be a text"),
        ({"inputs": [], "parameters": []}, b"", "parameters of the request have to be an object"),
        ({"inputs": ["x"]}, b"", "an object with a name"),
        ({"inputs": [tensor(name=3)]}, b"", "an object with a name"),
        ({"inputs": [plain(), plain()]}, b"", "'x' is there twice"),
        ({"inputs": [{**plain(), "datatype": "FP128"}]}, b"", "input 'x': there is no datatype 'FP128'"),
        ({"inputs": [{**plain(), "datatype": []}]}, b"", "there is no datatype"),
        ({"inputs": [{**plain(), "shape": [-1, 4]}]}, b"", "list of sizes from 0 on"),
        ({"inputs": [{**plain(), "parameters": 3}]}, b"", "parameters of input 'x' have to be an object"),
        ({"inputs": [{**plain(), "parameters": {"shared_memory_region": "a"}}]}, b"", "shared memory is not supported"),
        ({"inputs": [tensor()]}, b"", "neither data nor binary_data_size"),
        ({"inputs": [raw(data=[])]}, RAW, "it can have one of them"),
        ({"inputs": [raw(size=True)]}, RAW, "has to be a number of bytes"),
        ({"inputs": [raw(size=-16)]}, RAW, "has to be a number of bytes"),
        ({"inputs": [raw(), raw("y")]}, RAW, "binary_data_size is 16, but only 0 bytes are left"),
        ({"inputs": [raw()]}, RAW + b"1", "17 bytes of binary data were sent, but the inputs account for 16"),
        ({"inputs": [plain()], "outputs": "y"}, b"", "outputs has to be a list"),
        ({"inputs": [plain()], "outputs": ["y"]}, b"", "each output has to be an object with a name"),
        ({"inputs": [plain()], "outputs": [{"name": "y"}, {"name": "y"}]}, b"", "'y' is asked for twice"),
        ({"inputs": [plain()], "outputs": [{"name": "y", "parameters": {"classification": 3}}]}, b"", "classification is not supported"),
        ({"inputs": [plain()], "outputs": [{"name": "y", "parameters": {"shared_memory_size": 3}}]}, b"", "shared memory is not"),
        ({"inputs": [plain()], "outputs": [{"name": "y", "parameters": {"binary_data": 1}}]}, b"", "binary_data has to be true or"),
        ({"inputs": [plain()], "parameters": {"binary_data_output": "yes"}}, b"", "binary_data_output has to be true or false"),
    ],
)
def test_what_is_wrong_with_a_request_is_told(said: Any, behind: bytes, why: str) -> None:
    with pytest.raises(RequestError, match=why):
        read(said, behind)


@pytest.mark.parametrize(
    ("said", "names", "wanted"),
    [
        ({}, None, {"": False}),
        ({"outputs": []}, None, {"": False}),
        ({"parameters": {"binary_data_output": True}}, None, {"": True}),
        ({"outputs": [{"name": "y"}]}, ["y"], {"": False, "y": False}),
        (
            {"parameters": {"binary_data_output": True}, "outputs": [{"name": "y", "parameters": {"binary_data": False}}, {"name": "z"}]},
            ["y", "z"],
            {"": True, "y": False, "z": True},
        ),
    ],
)
def test_outputs_are_raw_where_they_are_asked_to_be(said: Any, names: Any, wanted: Any) -> None:
    request, found = read({"inputs": [plain()], **said})

    assert (request.outputs, found) == (names, wanted)


def test_numbers_that_are_none_are_read_as_python_writes_them() -> None:
    assert read_json(b'{"a": [Infinity]}') == {"a": [float("inf")]}
    for body in (b"{", b"\xff", b"[" * 100_000, b""):
        with pytest.raises(RequestError, match="not valid JSON"):
            read_json(body)


def test_an_answer_is_json_with_raw_tensors_behind_it_in_their_order() -> None:
    arrays = [np.full(2, number, np.float32) for number in range(3)]
    outputs = [(name, "FP32", array) for name, array in zip("abc", arrays)]

    parts, length = write_infer(InferResponse("net", "1", "", outputs), {"": True, "b": False})

    head, *raws = parts
    said = json.loads(bytes(head))
    assert length == len(head)
    assert [output.get("data") for output in said["outputs"]] == [None, [1, 1], None]
    assert [output.get("parameters") for output in said["outputs"]] == [{"binary_data_size": 8}, None, {"binary_data_size": 8}]
    assert [bytes(part) for part in raws] == [arrays[0].tobytes(), arrays[2].tobytes()]
    assert "id" not in said and "parameters" not in said


def test_an_answer_of_json_alone_has_no_length_and_its_id() -> None:
    (text,), length = write_infer(InferResponse("net", "2", "7", [], {"how": "well"}), {"": False})

    assert length is None
    assert json.loads(text) == {"model_name": "net", "model_version": "2", "id": "7", "parameters": {"how": "well"}, "outputs": []}


def test_an_output_that_json_cannot_say_is_told() -> None:
    output = ("y", "BF16", np.zeros(1, np.float32))

    with pytest.raises(RequestError, match="output 'y'"):
        write_infer(InferResponse("net", "1", "", [output]), {"": False})
