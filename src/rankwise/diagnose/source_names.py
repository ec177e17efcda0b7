"""Where a name, an attribute or a function of the user's code gets its meaning."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import cast

from rankwise.diagnose.source_guards import Guard, guards_around, leaves
from rankwise.diagnose.source_tree import (
    COMPREHENSIONS,
    FUNCTIONS,
    LOOPS,
    Function,
    ancestors,
    block_of,
    called_name,
    class_of,
    last_name,
    own_nodes,
    owner_name,
    parent_of,
    returns_plainly,
    scope_of,
    tree_of,
)

_SELF = ("self", "cls", "")  # "" for a property, and for what has no name
_SMALL, _FEW = 400, 8  # nodes and returns of a function that is worth following
_CHANGES = {"append", "extend", "insert", "remove", "pop", "clear", "add", "discard", "update", "sort", "reverse"}


@dataclass(frozen=True, eq=False)
class Binding:
    """One place that gives a name its value. kind: value, parameter, import, property, loop, other."""

    name: str
    node: ast.AST
    kind: str
    value: ast.expr | None = None
    index: int | None = None  # which part of the value, for `a, b = f()`


@dataclass
class Names:
    """The names of the user's files; `trees_with(text)` gives the trees of the files that contain a text."""

    trees_with: Callable[[str], list[ast.Module]]
    _bindings: dict[ast.AST, dict[str, list[Binding]]] = field(default_factory=dict)
    _attributes: dict[str, list[Binding]] = field(default_factory=dict)
    _functions: dict[str, list[Function]] = field(default_factory=dict)
    _returns: dict[Function, list[ast.Return] | None] = field(default_factory=dict)
    _guards: dict[ast.AST, list[Guard]] = field(default_factory=dict)
    _changed: dict[str, bool] = field(default_factory=dict)

    def bindings(self, scope: ast.AST) -> dict[str, list[Binding]]:
        """What a function or module binds, by name, in the order of the text."""
        if scope not in self._bindings:
            by_name: dict[str, list[Binding]] = {}
            for binding in [*_bound_in(scope), *_bound_from_inside(scope)]:
                by_name.setdefault(binding.name, []).append(binding)
            self._bindings[scope] = by_name
        return self._bindings[scope]

    def of_name(self, use: ast.Name) -> list[Binding] | None:
        """The bindings that may have given a name its value where it is used; None if nothing in the file binds it."""
        is_own, below = True, cast(ast.AST, use)
        for above in ancestors(use):
            if _is_bound_by_expression(above, use.id):
                return [Binding(use.id, above, "loop")]
            is_scope = isinstance(above, ast.Module) or (isinstance(above, FUNCTIONS) and below in above.body)
            if is_scope and (found := self.bindings(above).get(use.id)) is not None:
                return _reaching(found, use) if is_own else found
            is_own, below = is_own and not is_scope and not isinstance(above, ast.Lambda), above
        return None

    def of_attribute(self, use: ast.Attribute, anywhere: bool) -> list[Binding]:
        """What gives an attribute its value: in the same class or for an owner of the same name, or `anywhere` it may be given one."""
        if use.attr not in self._attributes:
            nodes = (node for tree in self.trees_with(use.attr) for node in ast.walk(tree))
            self._attributes[use.attr] = [binding for node in nodes for binding in _attribute_binding(node, use.attr)]
        found, owner, own_class = self._attributes[use.attr], owner_name(use), class_of(use)
        of_classes = [binding for binding in found if owner_name(binding.node) in _SELF]
        of_others = [binding for binding in found if binding not in of_classes]
        if owner not in _SELF:
            near = [binding for binding in of_others if owner_name(binding.node) == owner and tree_of(binding.node) is tree_of(use)]
            return [*of_classes, *of_others] if anywhere else near
        near = [binding for binding in of_classes if class_of(binding.node) is own_class]
        near += [b for b in self.bindings(own_class).get(use.attr, []) if b.kind == "value"] if own_class is not None else []
        return [*(near or of_classes), *of_others] if anywhere else near

    def of_call(self, call: ast.Call) -> list[Function]:
        """The functions of the user's files that a call may mean: those bound to the name, those of the class, or all of that name."""
        name, bound = called_name(call), self.of_name(call.func) if isinstance(call.func, ast.Name) else None
        if bound and not all(binding.kind == "import" for binding in bound):
            nodes = [binding.node for binding in bound if isinstance(binding.node, FUNCTIONS)]
            return nodes if len(nodes) == len(bound) else []
        if name not in self._functions:
            trees = self.trees_with(f"def {name}") if name else []
            self._functions[name] = [n for tree in trees for n in ast.walk(tree) if isinstance(n, FUNCTIONS) and n.name == name]
        found = self._functions[name]
        if isinstance(call.func, ast.Name):
            return [function for function in found if not isinstance(parent_of(function), ast.ClassDef)]
        own = [function for function in found if owner_name(call) in _SELF and parent_of(function) is class_of(call)]
        return own or found

    def returns_of(self, function: Function) -> list[ast.Return] | None:
        """The return statements of a small function, the invisible one at its end included; None for others."""
        if function not in self._returns:
            nodes = list(islice(own_nodes(function), _SMALL + 1))
            found = [node for node in nodes if isinstance(node, ast.Return)]
            found += [] if leaves(function.body) else [_end_of(function)]
            self._returns[function] = found if len(nodes) <= _SMALL and len(found) <= _FEW and returns_plainly(function) else None
        return self._returns[function]

    def guards_around(self, node: ast.AST) -> list[Guard]:
        """The conditions for a node to run, within its function."""
        if node not in self._guards:
            self._guards[node] = guards_around(node)
        return self._guards[node]

    def is_changed(self, name: str) -> bool:
        """True if a list of this name is changed in place anywhere."""
        if name not in self._changed:
            self._changed[name] = any(_changes(node, name) for tree in self.trees_with(name) for node in ast.walk(tree))
        return self._changed[name]


# -- what binds ---------------------------------------------------------------------------------------------------------------


def _bound_in(scope: ast.AST) -> list[Binding]:
    nodes = list(own_nodes(scope))
    elsewhere = {name for node in nodes if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}
    found = [binding for node in nodes for binding in _binding(node) if binding.name not in elsewhere]
    return sorted(found, key=lambda binding: _position(binding.node))


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


def _attribute_binding(node: ast.AST, attribute: str) -> Iterator[Binding]:
    if isinstance(node, ast.Attribute) and node.attr == attribute and not isinstance(node.ctx, ast.Load):
        yield from _assigned(node, attribute)
    elif isinstance(node, ast.FunctionDef) and node.name == attribute and any(map(_is_property, node.decorator_list)):
        yield Binding(attribute, node, "property")


def _is_property(mark: ast.expr) -> bool:
    return last_name(mark) in ("property", "cached_property")


def _assigned(target: ast.expr, name: str) -> Iterator[Binding]:
    """The binding of an assignment's target, with its value where that can be told."""
    group, holder = target, parent_of(target)
    while isinstance(holder, (ast.Tuple, ast.List, ast.Starred)):
        group, holder = holder, parent_of(holder)
    match holder:
        case ast.Assign(value=value) | ast.NamedExpr(value=value) | ast.AnnAssign(value=ast.expr() as value):
            yield _assigned_from(target, name, group, value)
        case ast.For() | ast.AsyncFor():
            yield Binding(name, target, "loop")
        case ast.comprehension() | ast.AnnAssign():
            return  # a scope of its own; a mere declaration
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


def _is_bound_by_expression(node: ast.AST, name: str) -> bool:
    """True if a comprehension or lambda gives the name a meaning of its own inside it."""
    if isinstance(node, COMPREHENSIONS):
        targets = (part for generator in node.generators for part in ast.walk(generator.target))
        return any(isinstance(part, ast.Name) and part.id == name for part in targets)
    return isinstance(node, ast.Lambda) and any(isinstance(part, ast.arg) and part.arg == name for part in ast.walk(node.args))


def _changes(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Attribute(attr=attribute, value=changed):
            return attribute in _CHANGES and last_name(changed) == name
        case ast.Subscript(ctx=ast.Store() | ast.Del(), value=changed) | ast.AugAssign(target=changed):
            return last_name(changed) == name
    return False


def _end_of(function: Function) -> ast.Return:
    """`return` as it could stand after the last statement."""
    end = ast.copy_location(ast.Return(value=None), function)
    end.parent = function  # type: ignore[attr-defined]
    return end


# -- which binding counts -----------------------------------------------------------------------------------------------------


def _reaching(found: list[Binding], use: ast.Name) -> list[Binding]:
    """The bindings of a scope that can still hold where a name is used in it: the last certain one, and what may come after it."""
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
    """True if whoever gets to the end of the path has come through this earlier binding."""
    statement = _statement_of(binding.node)
    if binding.kind == "parameter" or statement in on_path:
        return True
    return not isinstance(statement, (*LOOPS, ast.Try, ast.Match)) and any(sibling in on_path for sibling in block_of(statement))


def _comes_around(binding: Binding, path: list[ast.AST], live: list[Binding]) -> bool:
    """True if a later binding can hold at an earlier use: they share a loop, in which nothing binds the name anew; or a function calls back."""
    if scope_of(binding.node) is not scope_of(path[0]):
        return True
    around = set(ancestors(binding.node))
    loop = next((node for node in path if isinstance(node, LOOPS) and node in around), None)
    return loop is not None and not (live and loop in ancestors(live[0].node) and _is_certain(live[0], set(path)))


def _statement_of(node: ast.AST) -> ast.AST:
    return node if isinstance(node, ast.stmt) else next((above for above in ancestors(node) if isinstance(above, ast.stmt)), node)


def _position(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
