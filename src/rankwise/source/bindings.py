"""Finds the assignments that give a name its value, and which of several counts at the line where the name is used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from rankwise.source.tree import COMPREHENSIONS, LOOPS, ancestors, block_of, last_name, own_nodes, parent_of, scope_of


@dataclass(frozen=True, eq=False)
class Binding:
    """One place that gives a name its value. kind: value, parameter, import, property, loop, other."""

    name: str
    node: ast.AST
    kind: str
    value: ast.expr | None = None
    index: int | None = None  # which part of the value, for `a, b = f()`


def bindings_in(scope: ast.AST) -> list[Binding]:
    """What a function, class or module binds, in the order of the text; then what functions inside it bind by `global` or `nonlocal`."""
    nodes = list(own_nodes(scope))
    elsewhere = {name for node in nodes if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}
    found = [binding for node in nodes for binding in _binding(node) if binding.name not in elsewhere]
    return sorted(found, key=lambda binding: _position(binding.node)) + _bound_from_inside(scope)


def _bound_from_inside(scope: ast.AST) -> list[Binding]:
    """What the functions inside a scope bind in it, by `global` or `nonlocal`."""
    found = []
    for node in ast.walk(scope):
        if isinstance(node, ast.Global if isinstance(scope, ast.Module) else ast.Nonlocal):
            inner = scope_of(node)
            found += [
                binding for part in own_nodes(inner) for binding in _binding(part) if binding.name in node.names and inner is not scope
            ]
    return found


def _binding(node: ast.AST) -> Iterator[Binding]:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield from _assigned(node, name)
        case ast.arg(arg=name):
            yield Binding(name, node, "parameter")
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from (Binding(alias.asname or alias.name.split(".")[0], node, "import") for alias in aliases)
        case ast.FunctionDef(name=str(name)) | ast.AsyncFunctionDef(name=str(name)) | ast.ClassDef(name=str(name)):
            yield Binding(name, node, "other")
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield Binding(name, node, "other")


def attribute_bindings(node: ast.AST) -> Iterator[Binding]:
    """What a node gives to an attribute: by an assignment, or as a property."""
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        yield from _assigned(node, node.attr)
    elif isinstance(node, ast.FunctionDef) and any(map(_is_property, node.decorator_list)):
        yield Binding(node.name, node, "property")


def _is_property(mark: ast.expr) -> bool:
    return last_name(mark) in ("property", "cached_property")


def _assigned(target: ast.expr, name: str) -> Iterator[Binding]:
    """The binding of an assignment's target, with its value where that is known."""
    group, holder = target, parent_of(target)
    while isinstance(holder, (ast.Tuple, ast.List, ast.Starred)):
        group, holder = holder, parent_of(holder)
    match holder:
        case ast.Assign(value=value) | ast.NamedExpr(value=value) | ast.AnnAssign(value=ast.expr() as value):
            yield _assigned_from(target, name, group, value)
        case ast.For() | ast.AsyncFor():
            yield Binding(name, target, "loop")
        case ast.comprehension() | ast.AnnAssign():
            return  # a comprehension has a scope of its own; an annotation without a value gives none
        case _:
            yield Binding(name, target, "other")


def _assigned_from(target: ast.expr, name: str, group: ast.expr, value: ast.expr) -> Binding:
    if group is target:
        return Binding(name, target, "value", value)
    parts = _plain_parts(group)
    if target not in parts:
        return Binding(name, target, "other")
    index, values = parts.index(target), _plain_parts(value)
    if len(values) == len(parts):
        return Binding(name, target, "value", values[index])
    return Binding(name, target, "value", value, index)


def _plain_parts(node: ast.expr) -> list[ast.expr]:
    parts = node.elts if isinstance(node, (ast.Tuple, ast.List)) else []
    return [] if any(isinstance(part, ast.Starred) for part in parts) else parts


def is_bound_by_expression(node: ast.AST, name: str) -> bool:
    """True if a comprehension or lambda binds the name inside itself."""
    if isinstance(node, COMPREHENSIONS):
        targets = (part for generator in node.generators for part in ast.walk(generator.target))
        return any(isinstance(part, ast.Name) and part.id == name for part in targets)
    return isinstance(node, ast.Lambda) and any(isinstance(part, ast.arg) and part.arg == name for part in ast.walk(node.args))


# -- which binding counts -----------------------------------------------------------------------------------------------------


def reaching(found: list[Binding], use: ast.Name) -> list[Binding]:
    """The bindings of a scope that may hold where a name is used in it: the last certain one, and those that may come after it."""
    path = [use, *ancestors(use)]
    on_path = set(path)
    live: list[Binding] = []
    later: list[Binding] = []
    for binding in found:
        if binding.value in on_path or _position(binding.node) > _position(use) or scope_of(binding.node) is not scope_of(use):
            later.append(binding)
        else:
            live = [binding] if _is_certain(binding, on_path) else [*live, binding]
    return live + [binding for binding in later if _comes_around(binding, path, live)]


def _is_certain(binding: Binding, on_path: set[ast.AST]) -> bool:
    """True if every way to the end of the path goes through this earlier binding."""
    statement = _statement_of(binding.node)
    if binding.kind == "parameter" or statement in on_path:
        return True
    return not isinstance(statement, (*LOOPS, ast.Try, ast.Match)) and any(sibling in on_path for sibling in block_of(statement))


def _comes_around(binding: Binding, path: list[ast.AST], live: list[Binding]) -> bool:
    """True if a later binding can hold at an earlier use: in another function, or in a loop around both that does not bind it first."""
    if scope_of(binding.node) is not scope_of(path[0]):
        return True
    around = set(ancestors(binding.node))
    loop = next((node for node in path if isinstance(node, LOOPS) and node in around), None)
    return loop is not None and not (live and loop in ancestors(live[0].node) and _is_certain(live[0], set(path)))


def _statement_of(node: ast.AST) -> ast.AST:
    return node if isinstance(node, ast.stmt) else next((above for above in ancestors(node) if isinstance(above, ast.stmt)), node)


def _position(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
