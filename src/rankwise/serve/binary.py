"""An infer request and its answer as HTTP bodies: JSON, and raw tensors behind it (the binary tensor extension)."""

from __future__ import annotations

import json
from typing import Any

import orjson

from rankwise.protocol import DATATYPES, Array, check_shape, from_json, from_raw, to_json, to_raw
from rankwise.serve.answering import Answering
from rankwise.serve.errors import RequestError
from rankwise.serve.infer_request import InferRequest, InferResponse

Wanted = dict[str, bool]  # output: whether it is wanted as raw bytes; the key "" is for all other outputs


def read_json(body: bytes | memoryview) -> Any:
    """The JSON of a body; NaN and infinities are accepted as Python's json and Triton write them."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        why = str(error)
    try:
        return json.loads(bytes(body).decode())
    except (ValueError, RecursionError):
        raise RequestError(f"the request is not valid JSON: {why[:200]}") from None


def read_infer(body: bytes | memoryview, header_length: str | None, model: Answering | None) -> tuple[InferRequest, Wanted]:
    """`header_length` is Inference-Header-Content-Length: where the JSON ends and raw tensors begin. `model` says what
    a request without JSON means; without one, such a request is an error."""
    if header_length is None:
        return _parsed(read_json(body), memoryview(b""))
    if not header_length.isascii() or not header_length.isdigit() or len(header_length) > 18 or int(header_length) > len(body):
        raise RequestError(f"Inference-Header-Content-Length is {header_length[:40]!r}; it must be a number of at most {len(body)}")
    length, whole = int(header_length), memoryview(body)
    if length == 0:
        return _raw(whole, model)
    return _parsed(read_json(whole[:length]), whole[length:])


def _raw(body: memoryview, model: Answering | None) -> tuple[InferRequest, Wanted]:
    """A request without JSON: the body is the raw bytes of the model's only input, with one row."""
    if model is None or len(model.inputs) != 1:
        raise RequestError(
            f"model {model.name if model else ''!r} has not exactly one input, so a request needs JSON that says what is what"
        )
    spec = model.inputs[0]
    if sum(size == -1 for size in spec.shape[1:]) or spec.datatype == "BYTES":
        raise RequestError(f"the shape of input {spec.name!r} is not known without JSON that says it")
    shape = tuple([1 if size == -1 else size for size in spec.shape])
    try:
        return InferRequest({spec.name: (spec.datatype, from_raw(spec.datatype, shape, body))}), {"": True}
    except ValueError as error:
        raise RequestError(f"input {spec.name!r}: {error}") from None


def _parsed(said: Any, raw: memoryview) -> tuple[InferRequest, Wanted]:
    if type(said) is not dict:
        raise RequestError("the request has to be a JSON object")
    parameters, ident = _parameters(said, "the request"), said.get("id", "")
    if type(ident) is not str or (not ident.isascii() and not _is_unicode(ident)):
        raise RequestError("id has to be a text")
    listed = said.get("inputs")
    if type(listed) is not list:
        raise RequestError("the request needs a list of inputs")
    inputs: dict[str, tuple[str, Array]] = {}
    at = 0
    for tensor in listed:
        name, datatype, array, taken = _named_input(tensor, raw, at)
        if name in inputs:
            raise RequestError(f"the input {name!r} is there twice")
        inputs[name] = (datatype, array)
        at += taken
    if at != len(raw):
        raise RequestError(f"{len(raw)} bytes of binary data were sent, but the inputs account for {at}")
    names, wanted = _outputs(said.get("outputs"), parameters)
    return InferRequest(inputs, names, ident, parameters), wanted


def _named_input(said: Any, raw: memoryview, at: int) -> tuple[str, str, Array, int]:
    """An input's name, datatype and array, and how many of the raw bytes it took."""
    if type(said) is not dict or type(said.get("name")) is not str:
        raise RequestError("each input has to be an object with a name")
    try:
        return said["name"], *_input(said, raw, at)
    except ValueError as error:
        raise RequestError(f"input {said['name']!r}: {error}") from None


def _input(said: dict[str, Any], raw: memoryview, at: int) -> tuple[str, Array, int]:
    """Raises ValueError with what is wrong."""
    datatype = said.get("datatype")
    if type(datatype) is not str or datatype not in DATATYPES:
        raise ValueError(f"there is no datatype {str(datatype)[:40]!r}; there are {', '.join(DATATYPES)}")
    shape = check_shape(said.get("shape"))
    parameters = _parameters(said, f"input {said['name']!r}")
    if any(key.startswith("shared_memory") for key in parameters):
        raise ValueError("shared memory is not supported")
    size = parameters.get("binary_data_size")
    if size is None:
        if "data" not in said:
            raise ValueError("it has neither data nor binary_data_size")
        return datatype, from_json(datatype, shape, said["data"]), 0
    if type(size) is not int or size < 0:
        raise ValueError("binary_data_size has to be a number of bytes")
    if "data" in said:
        raise ValueError("it has data in JSON and binary_data_size; it can have one of them")
    if at + size > len(raw):
        raise ValueError(f"binary_data_size is {size}, but only {len(raw) - at} bytes are left")
    return datatype, from_raw(datatype, shape, raw[at : at + size]), size


def _outputs(listed: Any, parameters: dict[str, Any]) -> tuple[list[str] | None, Wanted]:
    wanted: Wanted = {"": _flag(parameters, "binary_data_output")}
    if listed is None or listed == []:
        return None, wanted
    if type(listed) is not list:
        raise RequestError("outputs has to be a list")
    names = []
    for said in listed:
        if type(said) is not dict or type(said.get("name")) is not str:
            raise RequestError("each output has to be an object with a name")
        name = said["name"]
        if name in names:
            raise RequestError(f"the output {name!r} is asked for twice")
        own = _parameters(said, f"output {name!r}")
        if own.get("classification"):
            raise RequestError(f"output {name!r}: classification is not supported")
        if any(key.startswith("shared_memory") for key in own):
            raise RequestError(f"output {name!r}: shared memory is not supported")
        names.append(name)
        wanted[name] = _flag(own, "binary_data") if "binary_data" in own else wanted[""]
    return names, wanted


def _is_unicode(text: str) -> bool:
    """False for half a surrogate pair, which JSON can name and UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _flag(parameters: dict[str, Any], name: str) -> bool:
    value = parameters.get(name, False)
    if type(value) is not bool:
        raise RequestError(f"the parameter {name} has to be true or false")
    return value


def _parameters(said: dict[str, Any], what: str) -> dict[str, Any]:
    parameters = said.get("parameters", {})
    if type(parameters) is not dict:
        raise RequestError(f"the parameters of {what} have to be an object")
    return parameters


def write_infer(response: InferResponse, wanted: Wanted) -> tuple[list[bytes | memoryview], int | None]:
    """The parts of the body, and the length of its JSON if raw tensors follow."""
    listed, raws = [], []
    for name, datatype, array in response.outputs:
        said = {"name": name, "datatype": datatype, "shape": list(array.shape)}
        if wanted.get(name, wanted[""]):
            raws.append(raw := to_raw(array, datatype))
            listed.append(orjson.dumps({**said, "parameters": {"binary_data_size": len(raw)}}))
        else:
            try:
                data = to_json(array, datatype)
            except ValueError as error:
                raise RequestError(f"output {name!r}: {error}") from None
            listed.append(orjson.dumps(said)[:-1] + b',"data":' + data + b"}")
    head: dict[str, Any] = {"model_name": response.model_name, "model_version": response.model_version}
    if response.id:
        head["id"] = response.id
    if response.parameters:
        head["parameters"] = response.parameters
    text = orjson.dumps(head)[:-1] + b',"outputs":[' + b",".join(listed) + b"]}"
    return [text, *raws], len(text) if raws else None
