"""What is equal need not be the same: arguments that differ in type or sign never share a batch, nor are they taken for each other."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.families import mostly_live

torch = pytest.importorskip("torch")

from rankwise.errors import UsageError  # noqa: E402
from rankwise.pool import Model, Pool  # noqa: E402
from rankwise.pool.api.ensembles import mean  # noqa: E402
from rankwise.pool.memory.encoding import Uneven, is_same, pack  # noqa: E402
from rankwise.pool.memory.requests import join, rows_and_key  # noqa: E402

EQUALS = [2, 2.0, True, 1, 1.0, 0.0, -0.0, 0, False]


@dataclass
class Setting:
    value: Any


@pytest.mark.parametrize("wrap", mostly_live([lambda value: value, lambda value: {value: None}]), ids=["argument", "key of a dict"])
def test_requests_whose_arguments_compare_equal_keep_their_own(wrap: Any) -> None:
    with Pool({"naming": Model("tests.pool.models:naming", max_batch=16, max_delay_ms=5)}, workers=1) as pool:
        wanted = [EQUALS[i % len(EQUALS)] for i in range(200)]
        futures = [pool.submit("naming", torch.full((1, 1), float(i)), wrap(value)) for i, value in enumerate(wanted)]
        found = [future.result(60).tolist()[0] for future in futures]

        kinds = [(bool, int, float).index(type(value)) for value in wanted]
        assert found == [[i, kind, math.copysign(1 + abs(value), value)] for i, (kind, value) in enumerate(zip(kinds, wanted))]
        assert pool.stats()["models"]["naming"]["mean_batch"] > 1  # those that are the same still run together


@pytest.mark.parametrize("a", EQUALS, ids=repr)
@pytest.mark.parametrize("b", EQUALS, ids=repr)
@pytest.mark.parametrize(
    "wrap",
    [lambda v: v, lambda v: [v], lambda v: (v, None), lambda v: {v: 1}, lambda v: {v}, Setting, lambda v: OrderedDict({v: v})],
    ids=["plain", "list", "tuple", "dict", "set", "object", "ordered"],
)
def test_only_the_same_is_the_same(a: Any, b: Any, wrap: Any) -> None:
    expected = repr(a) == repr(b)

    assert is_same(wrap(a), wrap(b)) is expected
    key_of_a, key_of_b = (rows_and_key(pack((torch.ones(2, 1), wrap(value)), lambda array, _: array.tobytes()))[1] for value in (a, b))
    assert key_of_a is None or (key_of_a == key_of_b) is expected


@pytest.mark.parametrize(
    "value",
    [float("nan"), "text", b"bytes", 10**30, 1j, None, np.float32(2), np.arange(3), {1, "a", (2, 3)}],
    ids=lambda value: type(value).__name__,
)
def test_a_copy_is_the_same(value: Any) -> None:
    import pickle

    assert is_same(value, pickle.loads(pickle.dumps(value)))


def test_how_an_array_lies_in_memory_is_no_difference() -> None:
    rows = np.arange(12.0).reshape(3, 4)

    assert is_same([rows], [np.asfortranarray(rows)]) and is_same(rows[:, ::2], rows[:, ::2].copy())
    assert not is_same([rows], [rows.astype(np.float32)]) and not is_same([rows], [rows.reshape(4, 3)])


def test_what_cannot_be_compared_is_not_the_same() -> None:
    assert not is_same(lambda: 1, lambda: 1)


@pytest.mark.parametrize("pair", [(2, True), (0.0, -0.0), (frozenset({1}), frozenset({1.0}))], ids=repr)
def test_outputs_beside_the_rows_are_not_joined_where_they_only_compare_equal(pair: tuple[Any, Any]) -> None:
    with pytest.raises(Uneven):
        join([{"y": np.ones((2, 1)), "note": note} for note in pair])
    with pytest.raises(UsageError):
        mean([{"y": np.ones(2), "note": {note}} for note in pair])


def test_keys_that_only_compare_equal_are_not_the_same_output() -> None:
    with pytest.raises(UsageError):
        mean([{1: np.ones(2)}, {True: np.ones(2)}])
    with pytest.raises(Uneven):
        join([{1: np.ones((2, 1))}, {True: np.ones((2, 1))}])


def test_a_tensor_that_is_no_plain_memory_is_neither_cut_nor_joined() -> None:
    node = pack((torch.ones(2, 1), torch.eye(2).to_sparse()), lambda array, _: array.tobytes())
    assert rows_and_key(node) == (0, None)
