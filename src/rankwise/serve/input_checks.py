"""Checks the inputs of a request against those the model declares, and the model's outputs against its declared names and types. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rankwise.pool.api.model import by_text, named_list, output_names
from rankwise.protocol import Array, TensorSpec, datatype_of, dtype_of, of_objects
from rankwise.serve.errors import ModelFailed, RequestError
from rankwise.serve.infer_request import InferRequest, Output

Specs = Sequence[TensorSpec]


def checked_inputs(request: InferRequest, model: str, inputs: Specs, outputs: Specs) -> list[Array]:
    """The arrays in the order in which the model takes them."""
    if not request.inputs:
        raise RequestError("the request has no inputs")
    if request.outputs is not None and outputs:
        _check_known("output", request.outputs, {spec.name for spec in outputs}, model)
    if not inputs:
        return [array for _, array in request.inputs.values()]
    _check_known("input", request.inputs, {spec.name for spec in inputs}, model)
    return [_checked_input(spec, request.inputs, model) for spec in inputs]


def named_outputs(result: Any, model: str, outputs: Specs) -> list[Output]:
    """The model's outputs by their names."""
    found = _as_outputs(result)
    if outputs:
        if isinstance(result, Mapping) and {name for name, _ in found} >= {spec.name for spec in outputs}:
            by_name = dict(found)
            found = [(spec.name, by_name[spec.name]) for spec in outputs]
        if len(found) != len(outputs):
            raise ModelFailed(f"model {model!r} gave {len(found)} outputs, but {len(outputs)} are declared")
        return [(spec.name, spec.datatype, _checked_output(spec, array)) for spec, (_, array) in zip(outputs, found)]
    named = [(name, datatype_of(array), array) for name, array in found]
    for name, datatype, array in named:
        if not datatype:
            raise ModelFailed(f"output {name!r} of model {model!r} is of type {array.dtype}, which the protocol does not know")
        _check_words(name, datatype, array)
    return named


def chosen(outputs: list[Output], names: list[str] | None, model: str) -> list[Output]:
    """The outputs that the client asked for, in its order."""
    if names is None:
        return outputs
    by_name = {output[0]: output for output in outputs}
    _check_known("output", names, set(by_name), model)
    return [by_name[name] for name in names]


def _check_known(what: str, names: Any, known: set[str], model: str) -> None:
    for name in names:
        if name not in known:
            raise RequestError(f"model {model!r} has no {what} {name!r}; it has {', '.join(sorted(known))}")


def _checked_input(spec: TensorSpec, inputs: Mapping[str, tuple[str, Array]], model: str) -> Array:
    if spec.name not in inputs:
        raise RequestError(f"model {model!r} needs the input {spec.name!r}, which is missing")
    datatype, array = inputs[spec.name]
    if datatype != spec.datatype:
        raise RequestError(f"input {spec.name!r} of model {model!r} is {spec.datatype}, not {datatype}")
    if not _fits(spec.shape, array.shape):
        raise RequestError(f"input {spec.name!r} of model {model!r} has the shape {list(spec.shape)}, not {list(array.shape)}")
    return array


def _checked_output(spec: TensorSpec, array: Array) -> Array:
    datatype = datatype_of(array)
    if spec.datatype == "BF16" and datatype == "FP32":  # the pool turns BF16 into FP32, without loss
        array = array.astype(dtype_of("BF16"))
    elif datatype != spec.datatype:
        raise ModelFailed(f"output {spec.name!r} is {datatype or array.dtype}, but {spec.datatype} is declared")
    if not _fits(spec.shape, array.shape):
        raise ModelFailed(f"output {spec.name!r} has the shape {list(array.shape)}, but {list(spec.shape)} is declared")
    _check_words(spec.name, spec.datatype, array)
    return array


def _check_words(name: str, datatype: str, array: Array) -> None:
    if datatype == "BYTES" and array.dtype.kind == "O":
        for item in array.ravel().tolist():
            if type(item) not in (str, bytes):
                raise ModelFailed(f"output {name!r}: the model gave {type(item).__name__} where BYTES holds text or bytes")


def _fits(declared: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    if len(declared) != len(shape):
        return False
    for size, given in zip(declared, shape):  # noqa: SIM110  (all() makes a generator, which takes three times as long)
        if size != given and size != -1:
            return False
    return True


def _as_outputs(result: Any) -> list[tuple[str, Array]]:
    if isinstance(result, Mapping):
        try:
            return [(name, _as_array(value)) for name, value in by_text(result).items()]
        except TypeError as error:
            raise ModelFailed(f"the model's outputs cannot be named: {error}") from None
    if isinstance(result, (tuple, list)) and not all(isinstance(item, (str, bytes)) for item in result):
        return [(name, _as_array(value)) for name, value in named_list(result).items()]
    return [(output_names(None)[0], _as_array(result))]


def _as_array(value: Any) -> Array:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, (str, bytes)):
        return np.array(value, object)
    if isinstance(value, (bool, int, float, np.generic)):
        return np.asarray(value)
    if isinstance(value, (list, tuple)) and all(isinstance(item, (str, bytes)) for item in value):
        return of_objects(value, (len(value),))
    raise ModelFailed(f"the model gave a {type(value).__name__}, which is not a tensor")
