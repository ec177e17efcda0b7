"""Infer requests and answers between protobuf and numpy: raw contents, or typed lists."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rankwise.protocol import DATATYPES, Array, check_shape, converted, from_raw, of_objects, to_raw
from rankwise.serve.errors import RequestError
from rankwise.serve.infer_request import InferRequest, InferResponse
from rankwise.serve.rpc.types import message

ModelInferResponse = message("inference.ModelInferResponse")
_FIELDS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
_DTYPES = {
    "bool_contents": bool, "int_contents": np.int32, "int64_contents": np.int64, "uint_contents": np.uint32, "uint64_contents": np.uint64,
    "fp32_contents": np.float32, "fp64_contents": np.float64,
}  # fmt: skip


def read_infer(said: Any) -> tuple[InferRequest, bool]:
    """The request, and whether its answer goes out raw: as the request came in, or where a datatype has no typed form."""
    raws, listed = said.raw_input_contents, said.inputs
    if raws and len(raws) != len(listed):
        raise RequestError(f"{len(listed)} inputs were sent with {len(raws)} raw contents; each input needs one")
    inputs: dict[str, tuple[str, Array]] = {}
    for i, tensor in enumerate(listed):
        if tensor.name in inputs:
            raise RequestError(f"the input {tensor.name!r} is there twice")
        inputs[tensor.name] = (tensor.datatype, _named_input(tensor, raws[i] if raws else None))
    names = [output.name for output in said.outputs]
    if len(set(names)) != len(names):
        raise RequestError("an output is asked for twice")
    for output in said.outputs:
        _refuse_unknown(f"output {output.name!r}", output.parameters)
    return InferRequest(inputs, names or None, said.id, _parameters(said.parameters)), bool(raws)


def _named_input(tensor: Any, raw: bytes | None) -> Array:
    _refuse_unknown(f"input {tensor.name!r}", tensor.parameters)
    try:
        return _input(tensor, raw)
    except ValueError as error:
        raise RequestError(f"input {tensor.name!r}: {error}") from None


def _input(tensor: Any, raw: bytes | None) -> Array:
    """Raises ValueError with what is wrong."""
    datatype = tensor.datatype
    if datatype not in DATATYPES:
        raise ValueError(f"there is no datatype {datatype[:40]!r}; there are {', '.join(DATATYPES)}")
    shape = check_shape(list(tensor.shape))
    if raw is not None:
        if tensor.HasField("contents"):
            raise ValueError("it has raw and typed contents; it can have one of them")
        return from_raw(datatype, shape, raw)
    field = _FIELDS.get(datatype)
    if field is None:
        raise ValueError(f"{datatype} can only be sent as raw contents")
    for other, _ in tensor.contents.ListFields():
        if other.name != field:
            raise ValueError(f"{datatype} belongs in {field}, not in {other.name}")
    found = getattr(tensor.contents, field)
    if datatype != "BYTES":
        return converted(datatype, np.array(found, _DTYPES[field]), shape)
    if len(found) != math.prod(shape):
        raise ValueError(f"{list(shape)} has {math.prod(shape)} elements, but {len(found)} were given")
    return of_objects(list(found), shape)


def _refuse_unknown(what: str, parameters: Any) -> None:
    for key in parameters:
        if key.startswith("shared_memory") or key == "classification":
            raise RequestError(f"{what}: {key} is not supported")


def _parameters(said: Any) -> dict[str, Any]:
    return {key: getattr(value, value.WhichOneof("parameter_choice") or "string_param") for key, value in said.items()}


def write_infer(response: InferResponse, is_raw: bool) -> Any:
    answer = ModelInferResponse(model_name=response.model_name, model_version=response.model_version, id=response.id)
    for key, value in response.parameters.items():
        answer.parameters[key].string_param = str(value)
    is_raw = is_raw or any(datatype not in _FIELDS for _, datatype, _ in response.outputs)
    for name, datatype, array in response.outputs:
        tensor = answer.outputs.add(name=name, datatype=datatype, shape=array.shape)
        if is_raw:
            answer.raw_output_contents.append(bytes(to_raw(array, datatype)))
        elif datatype == "BYTES":
            tensor.contents.bytes_contents.extend(
                [item if isinstance(item, bytes) else str(item).encode() for item in array.ravel().tolist()]
            )
        else:
            getattr(tensor.contents, _FIELDS[datatype]).extend(array.ravel().tolist())
    return answer
