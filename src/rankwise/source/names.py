"""Where the names of the user's files are looked up: variables, attributes, functions."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import cast

from rankwise.source.bindings import Binding, attribute_bindings, bindings_in, is_bound_by_expression, reaching
from rankwise.source.guards import Guard, guards_around, leaves
from rankwise.source.tree import (
    FUNCTIONS,
    Function,
    ancestors,
    arguments_of,
    called_name,
    class_of,
    last_name,
    once,
    own_nodes,
    owner_name,
    parent_of,
    returns_plainly,
    tree_of,
)

_SELF = ("self", "cls", "")  # "" for a property, and for what has no name
_SMALL, _FEW = 400, 8  # limits on nodes and returns (or calls) of a function that is followed
_CHANGES = {"append", "extend", "insert", "remove", "pop", "clear", "add", "discard", "update", "sort", "reverse"}


@dataclass
class _Index:
    """What one file defines, by name."""

    functions: defaultdict[str, list[Function]] = field(default_factory=lambda: defaultdict(list))
    attributes: defaultdict[str, list[Binding]] = field(default_factory=lambda: defaultdict(list))
    calls: defaultdict[str, list[ast.Call]] = field(default_factory=lambda: defaultdict(list))
    changed: set[str] = field(default_factory=set)  # names of lists that are changed in place


@dataclass
class Names:
    """The names of the user's files; `trees_with(text)` gives the trees of the files that contain a text."""

    trees_with: Callable[[str], list[ast.Module]]

    @once
    def bindings(self, scope: ast.AST) -> dict[str, list[Binding]]:
        """What a function, class or module binds, by name."""
        by_name: defaultdict[str, list[Binding]] = defaultdict(list)
        for binding in bindings_in(scope):
            by_name[binding.name].append(binding)
        return dict(by_name)

    @once
    def of_name(self, use: ast.Name) -> list[Binding] | None:
        """The bindings that may have given a name its value where it is used; None if nothing in the file binds it."""
        is_own, below = True, cast(ast.AST, use)
        for above in ancestors(use):
            if is_bound_by_expression(above, use.id):
                return [Binding(use.id, above, "loop")]
            is_scope = isinstance(above, ast.Module) or (isinstance(above, FUNCTIONS) and below in above.body)
            if is_scope and (found := self.bindings(above).get(use.id)) is not None:
                return reaching(found, use) if is_own else found
            is_own, below = is_own and not is_scope and not isinstance(above, ast.Lambda), above
        return None

    @once
    def of_attribute(self, use: ast.Attribute, anywhere: bool) -> list[Binding]:
        """What gives an attribute its value: in the same class, or for an owner of the same name; with `anywhere`, for any owner."""
        found = [binding for tree in self.trees_with(use.attr) for binding in self._index(tree).attributes.get(use.attr, [])]
        owner, own_class = owner_name(use), class_of(use)
        of_classes = [binding for binding in found if owner_name(binding.node) in _SELF]
        of_others = [binding for binding in found if binding not in of_classes]
        if owner not in _SELF:
            near = [binding for binding in of_others if owner_name(binding.node) == owner and tree_of(binding.node) is tree_of(use)]
            return [*of_classes, *of_others] if anywhere and (near or of_classes) else near
        near = [binding for binding in of_classes if class_of(binding.node) is own_class]
        near += [b for b in self.bindings(own_class).get(use.attr, []) if b.kind == "value"] if own_class is not None else []
        return [*(near or of_classes), *of_others] if anywhere else near

    def of_call(self, call: ast.Call) -> list[Function]:
        """The functions of the user's files that a call may mean: those bound to the name, those of the class, or all of that name."""
        name, bound = called_name(call), self.of_name(call.func) if isinstance(call.func, ast.Name) else None
        if bound and not all(binding.kind == "import" for binding in bound):
            nodes = [binding.node for binding in bound if isinstance(binding.node, FUNCTIONS)]
            return nodes if len(nodes) == len(bound) else []
        trees = self.trees_with(f"def {name}") if name else []
        found = [function for tree in trees for function in self._index(tree).functions.get(name, [])]
        if isinstance(call.func, ast.Name):
            return [function for function in found if not isinstance(parent_of(function), ast.ClassDef)]
        own = [function for function in found if owner_name(call) in _SELF and parent_of(function) is class_of(call)]
        return own or found

    def given_to(self, function: Function) -> list[dict[str, ast.expr]]:
        """The arguments of each call of a function, by parameter; empty where there are too many calls to follow."""
        above = parent_of(function)
        is_new = function.name == "__init__" and isinstance(above, ast.ClassDef)
        name = cast(ast.ClassDef, above).name if is_new else function.name
        calls = [call for tree in self.trees_with(f"{name}(") for call in self._index(tree).calls.get(name, [])]
        return [arguments_of(function, call, is_bound=is_new) for call in calls] if len(calls) <= _FEW else []

    @once
    def returns_of(self, function: Function) -> list[ast.Return] | None:
        """The return statements of a small function, the invisible one at its end included; None for others."""
        nodes = list(islice(own_nodes(function), _SMALL + 1))
        found = [node for node in nodes if isinstance(node, ast.Return)]
        found += [] if leaves(function.body) else [_end_of(function)]
        return found if len(nodes) <= _SMALL and len(found) <= _FEW and returns_plainly(function) else None

    @once
    def guards_around(self, node: ast.AST) -> list[Guard]:
        """The conditions for a node to run, within its function."""
        return guards_around(node)

    def is_changed(self, name: str) -> bool:
        """True if a list of this name is changed in place anywhere."""
        return any(name in self._index(tree).changed for tree in self.trees_with(name))

    @once
    def _index(self, tree: ast.Module) -> _Index:
        index = _Index()
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS):
                index.functions[node.name].append(node)
            if isinstance(node, ast.Call):
                index.calls[called_name(node)].append(node)
            for binding in attribute_bindings(node):
                index.attributes[binding.name].append(binding)
            index.changed.add(_changed_by(node))
        return index


def _end_of(function: Function) -> ast.Return:
    """The implicit `return` after a function's last statement."""
    end = ast.copy_location(ast.Return(value=None), function)
    end.parent = function  # type: ignore[attr-defined]
    return end


def _changed_by(node: ast.AST) -> str:
    """The name of what a node changes in place, like `ranks` of `ranks.append(3)`."""
    match node:
        case ast.Attribute(attr=attribute, value=changed) if attribute in _CHANGES:
            return last_name(changed)
        case ast.Subscript(ctx=ast.Store() | ast.Del(), value=changed) | ast.AugAssign(target=changed):
            return last_name(changed)
    return ""
