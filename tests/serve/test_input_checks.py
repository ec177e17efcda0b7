"""Inputs and outputs against what was declared: the client's mistakes are told, and so are the model's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rankwise.protocol import TensorSpec, dtype_of
from rankwise.serve.errors import ModelFailed, RequestError
from rankwise.serve.infer_request import InferRequest
from rankwise.serve.input_checks import checked_inputs, chosen, named_outputs

A, B = TensorSpec("a", "FP32", (-1, 4)), TensorSpec("b", "INT64", (2,))
FLOATS, NUMBERS = np.zeros((3, 4), np.float32), np.arange(2)


def request(outputs: list[str] | None = None, **inputs: Any) -> InferRequest:
    return InferRequest(dict(inputs), outputs)


def test_inputs_come_in_the_order_in_which_the_model_takes_them() -> None:
    one, other = checked_inputs(request(b=("INT64", NUMBERS), a=("FP32", FLOATS)), "net", (A, B), ())

    assert one is FLOATS and other is NUMBERS


def test_a_model_nobody_described_gets_what_was_sent() -> None:
    assert checked_inputs(request(["any"], z=("INT64", NUMBERS)), "net", (), ())[0] is NUMBERS


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({}, "has no inputs"),
        ({"a": ("FP32", FLOATS)}, "needs the input 'b'"),
        ({"a": ("FP32", FLOATS), "b": ("INT64", NUMBERS), "c": ("FP32", FLOATS)}, "no input 'c'; it has a, b"),
        ({"a": ("FP64", FLOATS), "b": ("INT64", NUMBERS)}, "'a' of model 'net' is FP32, not FP64"),
        ({"a": ("FP32", FLOATS[:, :3]), "b": ("INT64", NUMBERS)}, r"the shape \[-1, 4\], not \[3, 3\]"),
        ({"a": ("FP32", FLOATS[0]), "b": ("INT64", NUMBERS)}, r"the shape \[-1, 4\], not \[4\]"),
    ],
)
def test_inputs_that_were_not_declared_so_are_told(inputs: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        checked_inputs(request(**inputs), "net", (A, B), ())


def test_an_output_that_is_not_there_is_told_before_the_model_runs() -> None:
    asked = request(["y"], a=("FP32", FLOATS))

    with pytest.raises(RequestError, match="no output 'y'; it has a"):
        checked_inputs(asked, "net", (A,), (A,))
    assert checked_inputs(request(["a"], a=("FP32", FLOATS)), "net", (A,), (A,))


def test_outputs_come_in_the_order_they_are_asked_for() -> None:
    outputs = [("y", "FP32", FLOATS), ("z", "INT64", NUMBERS)]

    assert chosen(outputs, None, "net") is outputs
    assert [name for name, _, _ in chosen(outputs, ["z", "y"], "net")] == ["z", "y"]
    assert chosen(outputs, [], "net") == []
    with pytest.raises(RequestError, match="no output 'x'; it has y, z"):
        chosen(outputs, ["x"], "net")


def test_what_a_model_calls_its_outputs_is_believed_where_none_are_declared() -> None:
    assert named_outputs({"y": FLOATS, 3: NUMBERS}, "net", ()) == [("y", "FP32", FLOATS), ("3", "INT64", NUMBERS)]


@pytest.mark.parametrize(
    ("result", "datatypes", "shapes"),
    [
        (FLOATS, ["FP32"], [(3, 4)]),
        ((FLOATS, NUMBERS), ["FP32", "INT64"], [(3, 4), (2,)]),
        (1.5, ["FP64"], [()]),
        (True, ["BOOL"], [()]),
        ("text", ["BYTES"], [()]),
        (["a", b"b"], ["BYTES"], [(2,)]),
        ([FLOATS, ["a"]], ["FP32", "BYTES"], [(3, 4), (1,)]),
    ],
)
def test_whatever_is_a_tensor_is_one(result: Any, datatypes: list[str], shapes: list[Any]) -> None:
    found = named_outputs(result, "net", ())

    assert [datatype for _, datatype, _ in found] == datatypes
    assert [array.shape for _, _, array in found] == shapes


def test_declared_outputs_go_by_name_where_the_model_names_them_and_by_order_where_not() -> None:
    b = TensorSpec("b", "INT64", (-1,))

    by_name = named_outputs({"b": NUMBERS, "more": FLOATS, "a": FLOATS}, "net", (A, b))
    by_order = named_outputs({"x": FLOATS, "y": NUMBERS}, "net", (A, b))

    assert [(name, datatype) for name, datatype, _ in by_name] == [("a", "FP32"), ("b", "INT64")]
    assert by_name[0][2] is FLOATS and by_order[1][2] is NUMBERS
    assert [name for name, _, _ in by_order] == ["a", "b"]


@pytest.mark.parametrize(
    ("result", "outputs", "said"),
    [
        (FLOATS, (A, B), "gave 1 outputs, but 2 are declared"),
        (NUMBERS, (A,), "'a' is INT64, but FP32 is declared"),
        (FLOATS[:, :3], (A,), r"has the shape \[3, 3\], but \[-1, 4\] is declared"),
        (np.zeros(2, complex), (), "complex128, which the protocol does not know"),
        (np.array([1, "a"], object), (), "gave int where BYTES holds text or bytes"),
        (np.array([1], object), (TensorSpec("w", "BYTES", (1,)),), "gave int where BYTES"),
        (object(), (), "gave a object, which is not a tensor"),
        (None, (), "gave a NoneType"),
        ([[1]], (), "gave a list"),
        ({1: FLOATS, "1": FLOATS}, (), "two names are .1. as text"),
    ],
)
def test_what_the_model_gave_and_should_not_have_is_its_failure(result: Any, outputs: Any, said: str) -> None:
    with pytest.raises(ModelFailed, match=said):
        named_outputs(result, "net", outputs)


def test_what_the_pool_widened_is_narrow_again() -> None:
    ((_, datatype, array),) = named_outputs(np.ones(2, np.float32), "net", (TensorSpec("y", "BF16", (2,)),))

    assert datatype == "BF16" and array.dtype == dtype_of("BF16")
