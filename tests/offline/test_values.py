"""Values of models and datasets as what can be stored: arrays of numbers, or what JSON can say."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import pathlib
import uuid
from typing import Any

import numpy as np
import pytest
import torch

from rankwise.offline.values import as_array, copied, is_numbers, is_utf8, named_parts, nbytes_of, own, plain, storable

Pair = collections.namedtuple("Pair", ["a", "b"])


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Name(str):
    pass


@dataclasses.dataclass
class Point:
    x: int
    y: Any


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, None),
        (True, True),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.arange(2), [0, 1]),
        (torch.tensor([[1, 2]]), [[1, 2]]),
        (torch.tensor([1.5], dtype=torch.bfloat16), [1.5]),
        (np.array([1 + 2j]), ["(1+2j)"]),
        (1 + 2j, "(1+2j)"),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.array(["2024-01-02"], "datetime64[D]"), ["2024-01-02"]),
        (np.datetime64("2024-01-02"), "2024-01-02"),
        (datetime.datetime(2024, 1, 2, 3, 4), "2024-01-02T03:04:00"),
        (datetime.date(2024, 1, 2), "2024-01-02"),
        (datetime.timedelta(minutes=1, microseconds=1), 60.000001),
        (decimal.Decimal("1E+3"), "1000"),
        (b"\x00\xff", "AP8="),
        (bytearray(b"a"), "YQ=="),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (pathlib.PurePosixPath("/a"), "/a"),
        (Level.HIGH, 3),
        (Name("a"), "a"),
        (Pair(1, np.float32(2)), {"a": 1, "b": 2.0}),
        (Point(1, Pair(2, 3)), {"x": 1, "y": {"a": 2, "b": 3}}),
        ({1: (1, b"a"), None: []}, {"1": [1, "YQ=="], "None": []}),
    ],
)
def test_a_value_as_json_can_say_it(value: Any, wanted: Any) -> None:
    found = plain(value)

    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize("value", [object(), {1, 2}, [object()], Colour.RED, Point])
def test_what_json_cannot_say_is_told(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be written"):
        plain(value)


def test_only_what_names_its_parts_has_named_parts() -> None:
    assert named_parts((1, 2)) is None
    assert named_parts(Point) is None
    assert named_parts(Point(1, 2)) == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (torch.ones(2, dtype=torch.bfloat16), np.float32),
        (torch.ones(2).to(torch.float8_e4m3fn), np.float32),
        (torch.ones(2, dtype=torch.float16), np.float16),
        (torch.ones(2, requires_grad=True), np.float32),
        (torch.eye(2).to_sparse(), np.float32),
        (torch.tensor([1 + 2j]).conj(), np.complex64),
        (np.ones(2, ">f4"), np.float32),
        (np.ones(2, np.longdouble), np.float64),
        (np.ones(2, np.clongdouble), np.complex128),
        (np.int8(1), np.int8),
    ],
)
def test_numbers_are_arrays_that_files_know(value: Any, dtype: Any) -> None:
    found = as_array(value)

    assert is_numbers(value)
    assert found.dtype == np.dtype(dtype) and found.dtype.isnative
    assert np.array_equal(
        found, value.detach().to_dense().resolve_conj().to(torch.complex64).numpy() if hasattr(value, "detach") else value
    )


@pytest.mark.parametrize("value", [1, [1], "a", np.array(["a"]), np.array([None])])
def test_what_is_no_array_of_numbers(value: Any) -> None:
    assert not is_numbers(value)


def test_an_entry_keeps_the_dtype_of_its_numbers() -> None:
    assert type(storable(torch.tensor(1.5))) is np.float32
    assert storable([1, (2,)]) == [1, [2]]


@pytest.mark.parametrize("text", ["a\udcff", "\ud800"])
def test_text_that_utf8_cannot_say(text: str) -> None:
    assert not is_utf8(text)
    assert is_utf8("aä😀")


def test_what_is_owned_is_not_changed_by_others() -> None:
    array, tensor, nested = np.zeros(2), torch.zeros(2), [[0]]
    mine = own(array), own(tensor), own(nested)
    column = copied(array), copied([array, "a"])

    array += 1
    tensor += 1
    nested[0].append(1)

    assert [mine[0].tolist(), mine[1].tolist(), mine[2]] == [[0, 0], [0, 0], [[0]]]
    assert column[0].tolist() == [0, 0] and column[1][0].tolist() == [0, 0]


def test_the_bytes_of_a_value() -> None:
    assert nbytes_of(np.zeros(3)) == 24
    assert nbytes_of("abc") == 3
    assert nbytes_of([1, b"ab"]) == 8 + 8 + 2
    assert nbytes_of({"a": [1]}) == 8 + 16
