"""Numbers of JSON as tensors: each has to be a value of the datatype that was said."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise.protocol import from_json


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        ("INT32", [1, True]),
        ("FP32", [[0.5, 2.0], [False, 3.0]]),
        ("UINT8", [True, False]),
        ("INT8", [1, 200]),
        ("INT64", [1.0, 2.0]),
        ("BOOL", [1, 2]),
        ("FP16", [1e9, 1.0]),
    ],
)
def test_what_is_no_value_of_the_datatype_is_refused(datatype: str, data: list[Any]) -> None:
    shape = (2, 2) if type(data[0]) is list else (2,)
    with pytest.raises(ValueError, match=datatype):
        from_json(datatype, shape, data)


@pytest.mark.parametrize(
    ("datatype", "data"), [("INT32", [0, 1, 7]), ("FP32", [0, 1, 0.5]), ("BOOL", [True, False, True]), ("BOOL", [1, 0, 1])]
)
def test_zeros_and_ones_are_numbers(datatype: str, data: list[Any]) -> None:
    assert from_json(datatype, (3,), data).tolist() == data
