"""Expressions of plain values: what Python would give, and no guess where a part is not known."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from rankwise.source.rank_expressions import NEVER, SOMETHING, UNKNOWN, Expressions, common_value


class Known(Expressions):
    """Knows three names."""

    def _of_name(self, node: ast.Name) -> Any:
        return {"rank": 2, "thing": SOMETHING, "numbers": range(4)}.get(node.id, UNKNOWN)


def value(text: str) -> Any:
    return Known().value(ast.parse(text, mode="eval").body)


@pytest.mark.parametrize(
    "text",
    [
        "2 + 3 * 4 - 1", "7 // 2", "7 % 4", "-3", "not 0", "1 < 2 < 3", "1 < 3 < 2", "3 in (1, 2)", "3 not in [1, 2]", "None is None",
        "(None) is not None", "(1, 2)[1]", "[4, 5][-1]", "'a' if 0 else 'b'", "0 or 5", "0 and 5", "3 and 5", "(x := 4)", "'a' == 'a'",
        "2 >= 2", "(1, 2) == (1, 2)",
    ],
)  # fmt: skip
def test_what_is_known_is_worked_out_as_python_does(text: str) -> None:
    assert value(text) == eval(text) and value(text) is not UNKNOWN


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rank == 2", True),
        ("rank in numbers", True),
        ("other == 2", UNKNOWN),
        ("rank + other", UNKNOWN),
        ("other and False", False),  # whatever it is
        ("other or True", True),
        ("other or 3", UNKNOWN),  # true, but need not be 3
        ("False or other", UNKNOWN),
        ("1 if other else 1", 1),
        ("1 if other else 2", UNKNOWN),
        ("thing is None", False),
        ("thing == 1", UNKNOWN),
        ("thing and 3", 3),
        ("2 > 1 > other", UNKNOWN),
        ("1 > 2 > other", False),
        ("'a' in numbers", UNKNOWN),
        ("rank + 'a'", UNKNOWN),
        ("1 % 0", UNKNOWN),
        ("(1, 2)[5]", UNKNOWN),
        ("(1, 2)['a']", UNKNOWN),
        ("'ab' * 3", UNKNOWN),
        ("~3", UNKNOWN),
        ("2 ** 3", UNKNOWN),
        ("f()", UNKNOWN),
    ],
)
def test_what_is_not_known_is_not_guessed(text: str, expected: Any) -> None:
    found = value(text)

    assert found is expected or (expected is not UNKNOWN and found == expected)


def test_numbers_too_large_and_expressions_too_deep_are_not_worked_out() -> None:
    assert value(f"{1 << 63} * 2") is UNKNOWN and value(f"{(1 << 63) - 1} * 1") == (1 << 63) - 1
    assert value("not " * 70 + "0") is UNKNOWN and value("not " * 50 + "0") is False
    assert value(f"[{'1, ' * 400}] == 1") is UNKNOWN


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1, 1], 1), ([1, NEVER], 1), ([NEVER, 1], 1), ([1, 2], UNKNOWN), ([1, UNKNOWN], UNKNOWN), ([NEVER], UNKNOWN), ([], UNKNOWN)],
)
def test_a_common_value_is_that_of_all_which_come_about(values: list[Any], expected: Any) -> None:
    assert common_value(values) == expected
