"""Evaluates a condition of the user's code for one rank, where it depends on nothing but rank and world size."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from rankwise.source.bindings import Binding
from rankwise.source.names import Names
from rankwise.source.rank_expressions import NEVER, SOMETHING, UNKNOWN, Expressions, common_value
from rankwise.source.rank_words import (
    TORCH_DISTRIBUTED,
    asks_whether_initialized,
    is_other_rank,
    is_part,
    meaning_of,
    meaning_of_call,
    meaning_of_variable,
    tells_rank,
)
from rankwise.source.tree import (
    FUNCTIONS,
    Function,
    ancestors,
    arguments_of,
    called_name,
    last_name,
    once,
    owner_name,
    parent_of,
    scope_of,
    string_key,
)

_MOST_CALLS = 4  # helpers within helpers


@dataclass(frozen=True)
class Position:
    """Which process of a job a condition is worked out for; misnamed: parameters called `rank` and the like that hold something else."""

    rank: int
    world_size: int
    local_rank: int | None = None
    misnamed: frozenset[ast.AST] = frozenset()

    def fact(self, meaning: str) -> Any:
        """The rank, the world size and what follows from them."""
        if meaning in ("local_rank", "local_main"):
            return UNKNOWN if self.local_rank is None else self.local_rank if meaning == "local_rank" else self.local_rank == 0
        return {"rank": self.rank, "main": self.rank == 0, "world_size": self.world_size}.get(meaning, UNKNOWN)


class RankConditions(Expressions):
    """Answers whether a condition holds on one rank, as far as it is understood."""

    def __init__(self, names: Names) -> None:
        super().__init__()
        self._names = names
        self._at = Position(0, 1)
        self._calls: list[tuple[Function, dict[str, Any]]] = []  # helpers being evaluated, with their arguments
        self._open: set[Binding] = set()  # bindings being evaluated: one that needs itself has no value
        self.depends_on_rank = False  # whether the last answer may be another one on another rank

    def truth(self, test: ast.expr, at: Position) -> bool | None:
        """Whether a condition holds on a rank; None if that cannot be told."""
        self._at, self.depends_on_rank = at, False
        value = self.value(test)
        return None if value is UNKNOWN else bool(value)

    # -- names ----------------------------------------------------------------------------------------------------------------

    def _of_name(self, node: ast.Name) -> Any:
        found, meaning = self._names.of_name(node), self._meaning(node.id, node)
        return self._fact(meaning) if found is None else self._agreed(node.id, found, meaning)

    def _of_attribute(self, node: ast.Attribute) -> Any:
        meaning = self._meaning(node.attr, node)
        found = self._names.of_attribute(node, anywhere=not meaning)
        if not meaning and any(_is_literal(b.value) and owner_name(b.node) not in ("self", "cls") for b in found):
            return UNKNOWN  # `config.debug = False` overrides a value that was set elsewhere
        return self._agreed(node.attr, found, meaning) if found and not self._is_of_many(node) else self._fact(meaning)

    def _agreed(self, name: str, found: list[Binding], meaning: str) -> Any:
        """The value that all bindings of a name have, without literals: `rank = 0` beside `rank = get_rank()` is for runs without a job."""
        real = [binding for binding in found if not meaning or not _is_literal(binding.value)] or found
        value = common_value(self._bound(binding, meaning, len(found) > 1) for binding in real)
        return UNKNOWN if isinstance(value, list) and self._names.is_changed(name) else value

    def _bound(self, binding: Binding, meaning: str, is_one_of_many: bool) -> Any:
        if binding.kind == "parameter":
            return self._given(binding, meaning)
        if binding.kind == "import":
            return self._fact(meaning)
        if meaning and isinstance(parent_of(binding.node), ast.AugAssign):
            return self._fact(meaning)  # args.rank += gpu
        if binding in self._open or binding.kind in ("loop", "other"):
            return UNKNOWN
        self._open.add(binding)
        try:
            if is_one_of_many and not self._is_reached(binding.node):
                return NEVER
            if isinstance(binding.node, FUNCTIONS):  # a property
                value = self._returned(binding.node, {}, bool(meaning))
            else:
                value = self.value(binding.value)
        finally:
            self._open.discard(binding)
        if value is not UNKNOWN and binding.index is not None:
            return value[binding.index] if isinstance(value, (tuple, list)) else UNKNOWN
        return self._fact(meaning) if value is UNKNOWN and self._is_what_its_name_says(binding) else value

    def _given(self, parameter: Binding, meaning: str) -> Any:
        for function, given in reversed(self._calls):
            if function is scope_of(parameter.node):
                return given.get(parameter.name, UNKNOWN)
        if parameter.node in self._at.misnamed:
            return UNKNOWN
        return self._fact(meaning) if meaning else self._passed(parameter)

    def _passed(self, parameter: Binding) -> Any:
        """The value that all calls of a function give a parameter: of `train(model, writer)`, where only rank 0 has a writer."""
        function = scope_of(parameter.node)
        if parameter in self._open or not isinstance(function, FUNCTIONS):
            return UNKNOWN
        self._open.add(parameter)
        try:
            return common_value(self.value(given.get(parameter.name)) for given in self._names.given_to(function))
        finally:
            self._open.discard(parameter)

    def _is_what_its_name_says(self, binding: Binding) -> bool:
        meaning, value = meaning_of(binding.name), binding.value
        if meaning in ("rank", "local_rank"):
            beside = getattr(parent_of(binding.node), "elts", []) if binding.index is not None else []
            if any(meaning_of(last_name(part)) in ("world_size", "size") for part in beside):
                return True  # rank, world_size = setup()
            source = self._names.of_name(value) if isinstance(value, ast.Name) else None
            return tells_rank(value) or (bool(source) and all(b.kind == "parameter" for b in source or ()))
        return binding.name.lower().lstrip("_") == "world_size"

    @once
    def _meaning(self, name: str, node: ast.AST) -> str:
        """What a name alone means; empty where what stands around it says otherwise."""
        meaning = meaning_of(name)
        if not meaning:
            return ""
        around = [getattr(above, "name", "") for above in ancestors(node) if isinstance(above, (*FUNCTIONS, ast.ClassDef))]
        owner = owner_name(node) or last_name(getattr(node, "value", None))
        if is_part(owner) or is_other_rank(owner, *around) or self._is_of_many(node):
            return ""
        if meaning == "size":
            names = self._names.bindings(scope_of(node)) if isinstance(node, ast.Name) else {}
            return "world_size" if any(meaning_of(other) == "rank" for other in names) else ""
        return meaning

    def _is_of_many(self, node: ast.AST) -> bool:
        """True for `x.rank` and `x["rank"]` where x is a loop's variable."""
        owner = getattr(node, "value", None)
        found = self._names.of_name(owner) if isinstance(owner, ast.Name) else None
        return any(binding.kind == "loop" for binding in found or ())

    def _fact(self, meaning: str) -> Any:
        self.depends_on_rank = self.depends_on_rank or meaning not in ("", "world_size")
        return self._at.fact(meaning)

    def _of_subscript(self, node: ast.Subscript) -> Any:
        return self._keyed(string_key(node), node) if string_key(node) else super()._of_subscript(node)

    def _keyed(self, key: str, node: ast.AST) -> Any:
        """What `os.environ["RANK"]`, `config["rank"]` and the like hold."""
        value = self._fact(meaning_of_variable(key))
        return self._fact(self._meaning(key, node)) if value is UNKNOWN else str(value)

    # -- calls ----------------------------------------------------------------------------------------------------------------

    def _of_call(self, node: ast.Call) -> Any:
        name, meaning = called_name(node), meaning_of_call(node)
        if asks_whether_initialized(node):
            return True  # a rank that waits for others has initialized its process group
        if string_key(node):
            return self._keyed(string_key(node), node.args[0] if name == "getattr" else node.func)
        if name in _CONVERSIONS and isinstance(node.func, ast.Name) and not node.keywords:
            given = self.values(node.args)
            return UNKNOWN if given is UNKNOWN or SOMETHING in given else _CONVERSIONS[name](*given)
        functions = self._functions(node)
        if functions:
            value = common_value(self._called(function, node, bool(meaning)) for function in functions)
            return self._fact(meaning) if value is UNKNOWN and meaning in ("main", "world_size") else value
        return SOMETHING if not meaning and name[:1].isupper() else self._fact(meaning)  # a class: SummaryWriter(log_dir)

    def _functions(self, node: ast.Call) -> list[Function]:
        """The user's functions that a call may mean, without those being evaluated: `dist.get_rank()` inside the user's own get_rank().

        `dist` may be a module of the user's own, but `dist.get_rank()` and the like are taken for torch's.
        """
        if owner_name(node) in TORCH_DISTRIBUTED and meaning_of_call(node):
            return []
        open_ones = [function for function, _ in self._calls] if isinstance(node.func, ast.Attribute) else []
        return [function for function in self._names.of_call(node) if function not in open_ones]

    def _called(self, function: Function, call: ast.Call, is_hinted: bool) -> Any:
        given = {name: self.value(argument) for name, argument in arguments_of(function, call).items()}
        return self._returned(function, given, is_hinted)

    def _returned(self, function: Function, given: dict[str, Any], is_hinted: bool) -> Any:
        """What a small function returns on this rank, without literals: `return 0` beside `return get_rank()` is for runs without a job."""
        returns = self._names.returns_of(function)
        if returns is None or len(self._calls) >= _MOST_CALLS:
            return UNKNOWN
        real = [node for node in returns if not (is_hinted and _is_literal(node.value))] or returns
        self._calls.append((function, given))
        try:
            return common_value(self._result(node) for node in real)
        finally:
            self._calls.pop()

    def _result(self, node: ast.Return) -> Any:
        if not self._is_reached(node):
            return NEVER
        return None if node.value is None else self.value(node.value)

    def _is_reached(self, node: ast.AST) -> bool:
        guards = self._names.guards_around(node)
        return all((value := self.value(guard.test)) is UNKNOWN or bool(value) == guard.wanted for guard in guards)


def find_misnamed(names: Names, function: Function, call: ast.Call, known: set[ast.AST]) -> set[ast.AST]:
    """The parameters called `rank` and the like to which a call gives another number, as in `for rank in range(8): send_to(rank)`."""
    given = arguments_of(function, call)
    parameters = [node for node in ast.walk(function.args) if isinstance(node, ast.arg) and meaning_of(node.arg) and node.arg in given]
    return {node for node in parameters if _is_other_value(names, given[node.arg], known)}


def _is_other_value(names: Names, node: ast.expr, misnamed: set[ast.AST]) -> bool:
    if isinstance(node, ast.Call) and called_name(node) in ("int", "str") and len(node.args) == 1:
        return _is_other_value(names, node.args[0], misnamed)
    if isinstance(node, ast.Name):
        return any(binding.kind == "loop" or binding.node in misnamed for binding in names.of_name(node) or ())
    if isinstance(node, ast.Subscript):
        return not string_key(node) and last_name(node.value) != "argv"
    return isinstance(node, (ast.BinOp, ast.Compare)) and not tells_rank(node)


def _is_literal(node: ast.expr | None) -> bool:
    return isinstance(node.operand if isinstance(node, ast.UnaryOp) else node, ast.Constant)


_CONVERSIONS: dict[str, Any] = {"int": int, "bool": bool, "str": str, "range": range, "len": len}
