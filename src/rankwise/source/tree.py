"""Parsed Python whose nodes know their parents, and small queries that all modules of this package use."""

from __future__ import annotations

import ast
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

_P = ParamSpec("_P")
_R = TypeVar("_R")
Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_TRANSPARENT = {"property", "cached_property", "cache", "lru_cache", "staticmethod", "classmethod", "no_grad", "inference_mode"}
_SHARED = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)  # Python reuses one object of these for all trees
_LONGEST_FILE = 2_000_000  # characters: longer ones are generated, and take seconds to parse


def once(method: Callable[Concatenate[Any, _P], _R]) -> Callable[Concatenate[Any, _P], _R]:
    """Cache a method's results per object: files do not change while a verdict is derived."""

    @wraps(method)
    def ask(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        known, key = vars(self).setdefault("_known", {}), (method.__name__, *args, *kwargs.items())
        if key not in known:
            known[key] = method(self, *args, **kwargs)
        return cast(_R, known[key])

    return ask


def parse(text: str) -> ast.Module | None:
    """The tree of a Python file; None if it is not Python, or too long."""
    if len(text) > _LONGEST_FILE:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about the user's code (invalid escapes) are not for the terminal
            tree = ast.parse(text.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, _SHARED):
                child.parent = node  # type: ignore[attr-defined]
    return tree


def parent_of(node: ast.AST) -> ast.AST | None:
    return getattr(node, "parent", None)


def ancestors(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes around a node, innermost first, without the node itself."""
    above = parent_of(node)
    while above is not None:
        yield above
        above = parent_of(above)


def scope_of(node: ast.AST) -> ast.AST:
    """The function a node stands in, or the module."""
    last = node
    for last in ancestors(node):
        if isinstance(last, FUNCTIONS):
            break
    return last


def class_of(node: ast.AST) -> ast.ClassDef | None:
    return next((above for above in ancestors(node) if isinstance(above, ast.ClassDef)), None)


def tree_of(node: ast.AST) -> ast.AST:
    """The module a node belongs to."""
    return next((above for above in ancestors(node) if parent_of(above) is None), node)


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or module, outer ones first, without the insides of functions, classes and lambdas in it."""
    todo = deque(ast.iter_child_nodes(scope))
    while todo:
        node = todo.popleft()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            todo.extend(ast.iter_child_nodes(node))


def block_of(statement: ast.AST) -> list[ast.stmt]:
    """The statements among which a statement stands."""
    above = parent_of(statement)
    for name in ("body", "orelse", "finalbody"):
        block = getattr(above, name, None)
        if isinstance(block, list) and statement in block:
            return block
    return []


def last_line(node: ast.stmt | ast.expr) -> int:
    return node.end_lineno or node.lineno


def covers(node: ast.stmt | ast.expr, line: int) -> bool:
    return node.lineno <= line <= last_line(node)


def last_name(node: ast.AST | None) -> str:
    """`c` of `a.b.c`, `a` of `a`; empty for everything else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def called_name(node: ast.Call) -> str:
    return last_name(node.func)


def owner_name(node: ast.AST) -> str:
    """`b` of `a.b.c` and of `a.b.c()`."""
    node = node.func if isinstance(node, ast.Call) else node
    return last_name(node.value) if isinstance(node, ast.Attribute) else ""


def string_key(node: ast.AST) -> str:
    """`key` of `x["key"]`, `x.get("key", …)`, `getenv("key")` and `getattr(x, "key", …)`."""
    key: ast.expr | None = None
    if isinstance(node, ast.Subscript):
        key = node.slice
    elif isinstance(node, ast.Call):
        position = {"get": 0, "getenv": 0, "getattr": 1}.get(called_name(node), len(node.args))
        key = node.args[position] if position < len(node.args) else None
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""


def parameters_of(function: Function) -> list[str]:
    return [parameter.arg for parameter in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def arguments_of(function: Function, call: ast.Call, is_bound: bool = False) -> dict[str, ast.expr]:
    """A call's argument for each parameter of a function, defaults included; empty for calls with * or **.

    `is_bound`: the call does not pass `self`.
    """
    if any(isinstance(argument, ast.Starred) for argument in call.args) or any(keyword.arg is None for keyword in call.keywords):
        return {}
    named = [parameter.arg for parameter in (*function.args.posonlyargs, *function.args.args)]
    given = dict(zip(named[::-1], function.args.defaults[::-1]))
    given |= {p.arg: default for p, default in zip(function.args.kwonlyargs, function.args.kw_defaults) if default is not None}
    is_method = (is_bound or isinstance(call.func, ast.Attribute)) and named[:1] in (["self"], ["cls"])
    given |= dict(zip(named[1:] if is_method else named, call.args))
    return given | {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}


def returns_plainly(function: Function) -> bool:
    """True for a function whose call returns what its return statements say: no generator or coroutine, no decorator that may change it."""
    marks = {last_name(getattr(mark, "func", mark)) for mark in function.decorator_list}
    is_generator = any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in own_nodes(function))
    return isinstance(function, ast.FunctionDef) and marks <= _TRANSPARENT and not is_generator


def text_of(node: ast.AST) -> str:
    """The code of an expression, cut to what fits a sentence."""
    try:
        return ast.unparse(node)[:120]
    except (RecursionError, ValueError):  # too deep, or a number of too many digits
        return "…"
