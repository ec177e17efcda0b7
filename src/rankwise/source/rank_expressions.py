"""Evaluates Python expressions of plain values; subclasses say what names and calls mean."""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterable
from typing import Any

UNKNOWN = object()
NEVER = object()  # the value of code that this rank does not reach
SOMETHING = object()  # an object of which only this is known: it is true, and not None
_DEEPEST = 60  # nested expressions, through variables and helpers
_LONGEST = 300  # steps of one evaluation: no reader would understand a longer condition


class Expressions:
    """Gives the value of an expression; UNKNOWN where it depends on unknown values, or is not understood."""

    def __init__(self) -> None:
        self._depth = self._steps = 0

    def value(self, node: ast.AST | None) -> Any:
        self._steps = self._steps + 1 if self._depth else 0
        method = getattr(self, f"_of_{type(node).__name__.lower()}", None)
        if method is None or self._depth >= _DEEPEST or self._steps > _LONGEST:
            return UNKNOWN
        self._depth += 1
        try:
            return method(node)
        except (TypeError, ValueError, ArithmeticError, LookupError, RecursionError):
            return UNKNOWN  # the expression would fail in the user's code too, or is nested too deeply
        finally:
            self._depth -= 1

    def _of_constant(self, node: ast.Constant) -> Any:
        return node.value

    def _of_tuple(self, node: ast.Tuple | ast.List | ast.Set) -> Any:
        values = self.values(node.elts)
        return tuple(values) if isinstance(node, ast.Tuple) and values is not UNKNOWN else values

    _of_list = _of_set = _of_tuple

    def _of_namedexpr(self, node: ast.NamedExpr) -> Any:
        return self.value(node.value)

    def _of_ifexp(self, node: ast.IfExp) -> Any:
        test = self.value(node.test)
        if test is UNKNOWN:
            return common_value(map(self.value, (node.body, node.orelse)))
        return self.value(node.body if test else node.orelse)

    def _of_compare(self, node: ast.Compare) -> Any:
        left = self.value(node.left)
        for comparison, right_node in zip(node.ops, node.comparators):
            right = self.value(right_node) if left is not UNKNOWN else UNKNOWN
            if right is UNKNOWN or (SOMETHING in (left, right) and not (right is None and isinstance(comparison, (ast.Is, ast.IsNot)))):
                return UNKNOWN
            if not _COMPARE[type(comparison)](left, right):
                return False
            left = right
        return True

    def _of_boolop(self, node: ast.BoolOp) -> Any:
        decisive, is_sure, value = isinstance(node.op, ast.Or), True, UNKNOWN
        for part in node.values:
            value = self.value(part)
            if value is UNKNOWN:
                is_sure = False
            elif bool(value) == decisive:  # `unknown or 3` is true, but need not be 3
                return value if is_sure or isinstance(value, bool) else UNKNOWN
        return value if is_sure else UNKNOWN

    def _of_unaryop(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        if value is UNKNOWN:
            return UNKNOWN
        return not value if isinstance(node.op, ast.Not) else -value if isinstance(node.op, ast.USub) else UNKNOWN

    def _of_binop(self, node: ast.BinOp) -> Any:
        operate, sides = _ARITHMETIC.get(type(node.op)), self.values([node.left, node.right])
        return operate(*sides) if operate is not None and sides is not UNKNOWN and all(map(_is_small, sides)) else UNKNOWN

    def _of_subscript(self, node: ast.Subscript) -> Any:
        values = self.value(node.value)
        index = self.value(node.slice) if isinstance(values, (tuple, list)) else UNKNOWN
        return values[index] if isinstance(index, int) else UNKNOWN

    def values(self, nodes: list[ast.expr]) -> Any:
        """The values of several expressions; UNKNOWN as soon as one is."""
        values = []
        for node in nodes:
            values.append(self.value(node))
            if values[-1] is UNKNOWN:
                return UNKNOWN
        return values


def common_value(values: Iterable[Any]) -> Any:
    """The value that all of them have, without NEVER; UNKNOWN where they differ."""
    common = NEVER
    for value in values:
        if value is UNKNOWN or (value is not NEVER and common is not NEVER and value != common):
            return UNKNOWN
        common = value if common is NEVER else common
    return UNKNOWN if common is NEVER else common


def _is_small(value: Any) -> bool:
    """True for numbers of 64 bits: arithmetic on them stays cheap, unlike `10**10 * [0]`."""
    return isinstance(value, int) and abs(value) < 1 << 63


def _is_in(value: Any, values: Any) -> bool:
    if isinstance(values, range) and not isinstance(value, int):
        raise TypeError("Python would compare it with each number of the range")
    return value in values


_ARITHMETIC: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
}
_COMPARE: dict[type, Any] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: _is_in,
    ast.NotIn: lambda value, values: not _is_in(value, values),
}
