"""Reads the user's code the way a colleague would: which rank can reach a line, which loop it is in, what could have skipped it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from rankwise.evidence.records import Frame, Stack

UNKNOWN = object()
_RANK_NAMES = {"rank", "global_rank", "world_rank", "local_rank", "process_index", "my_rank", "proc_id", "rank_id"}
_SIZE_NAMES = {"world_size", "world", "nprocs", "num_processes", "n_ranks", "size", "num_replicas", "ws"}
_MAIN_NAMES = {
    "is_main_process",
    "is_master",
    "is_main",
    "is_rank_zero",
    "is_rank0",
    "main_process",
    "is_global_zero",
    "is_local_main_process",
    "master_process",
}
_ZERO_ONLY = ("rank_zero", "rank0_only", "main_process_only", "on_main_process", "master_only", "only_rank")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LOOPS = (ast.For, ast.While, ast.AsyncFor)


@dataclass(frozen=True)
class Guard:
    """A condition that must hold for a line to be reached."""

    test: ast.expr
    wanted: bool
    line: int
    text: str


@dataclass(frozen=True)
class Skip:
    """A statement that leaves a block early: continue, break, return, or the end of an except block."""

    line: int
    kind: str
    in_handler: bool = False
    guard: str = ""


@dataclass
class SourceBook:
    """The user's files, parsed on first use. Files that do not parse are simply not understood."""

    sources: dict[str, str]
    _trees: dict[str, ast.Module | None] = field(default_factory=dict)

    def line_text(self, file: str, line: int) -> str:
        lines = self.sources.get(file, "").splitlines()
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""

    def tree(self, file: str) -> ast.Module | None:
        if file not in self._trees:
            try:
                tree = ast.parse(self.sources[file])
                for node in ast.walk(tree):
                    for child in ast.iter_child_nodes(node):
                        child.parent = node  # type: ignore[attr-defined]
                self._trees[file] = tree
            except (KeyError, SyntaxError, ValueError, RecursionError, MemoryError):
                self._trees[file] = None
        return self._trees[file]

    # -- conditions -----------------------------------------------------------------------------------------------------------

    def guards(self, file: str, line: int) -> list[Guard]:
        """The conditions around a line inside its function, and those it got past (`if …: return`), outermost first."""
        node = self._statement_at(file, line)
        found: list[Guard] = []
        while node is not None and not isinstance(node, (*_FUNCTIONS, ast.Module)):
            parent = getattr(node, "parent", None)
            if isinstance(parent, ast.If):
                if node in parent.body:
                    found.append(_guard(parent.test, True))
                elif node in parent.orelse:
                    found.append(_guard(parent.test, False))
            elif isinstance(parent, ast.IfExp) and node is not parent.test:
                found.append(_guard(parent.test, node is parent.body))
            elif isinstance(parent, ast.While) and node in parent.body:
                found.append(_guard(parent.test, True))
            found += [_guard(before.test, False) for before in _siblings_before(node, parent) if _always_leaves(before)]
            node = parent
        return found[::-1]

    def ranks_reaching(self, stack: Stack, ranks: list[int], world_size: int) -> tuple[set[int], Guard | None]:
        """Which ranks can be at this place, by the rank conditions around each of its frames, and the condition that decides."""
        reaching, decisive = set(ranks), None
        for frame in stack:
            if any(mark in frame.function for mark in _ZERO_ONLY):
                reaching &= {0}
            for guard in self.guards(frame.file, frame.line):
                passing = {rank for rank in ranks if self._holds(guard, frame, rank, world_size) is not False}
                if passing & set(ranks) != set(ranks) and passing:
                    decisive = decisive or guard
                    reaching &= passing
        return reaching, decisive

    def _holds(self, guard: Guard, frame: Frame, rank: int, world_size: int) -> bool | None:
        value = _Evaluator(self, frame, rank, world_size).value(guard.test, 0)
        return None if value is UNKNOWN else bool(value) == guard.wanted

    def branch_taken_by(self, frame: Frame, ranks: list[int], world_size: int) -> tuple[set[int], int] | None:
        """A rank-dependent `if` earlier in this frame's function, whose body only some of these ranks ran: who, and its line."""
        function = self._function_at(frame.file, frame.line)
        for node in ast.walk(function) if function is not None else ():
            if isinstance(node, ast.If) and node.lineno < frame.line and not _always_leaves(node):
                guard = _guard(node.test, True)
                took = {rank for rank in ranks if self._holds(guard, frame, rank, world_size) is True}
                left = {rank for rank in ranks if self._holds(guard, frame, rank, world_size) is False}
                if took and left:
                    return took, node.lineno
        return None

    def has_twin_call(self, frame: Frame, op: str, others: list[int], ranks: list[int], world_size: int) -> bool:
        """True if the same function calls the same collective again, in a place that those other ranks reach and these do not."""
        function = self._function_at(frame.file, frame.line)
        for node in ast.walk(function) if function is not None else ():
            if isinstance(node, ast.Call) and _called_name(node) == op and node.lineno != frame.line:
                reaching, guard = self.ranks_reaching((Frame(frame.file, node.lineno, frame.function),), [*others, *ranks], world_size)
                if guard is not None and reaching == set(others):
                    return True
        return False

    # -- structure ------------------------------------------------------------------------------------------------------------

    def loop_around(self, file: str, line: int) -> tuple[int, int] | None:
        """First and last line of the innermost loop around a line."""
        node = self._statement_at(file, line)
        while node is not None and not isinstance(node, (*_FUNCTIONS, ast.Module)):
            if isinstance(node, _LOOPS) and node.lineno < line:
                return node.lineno, node.end_lineno or node.lineno
            node = getattr(node, "parent", None)
        return None

    def loops_around(self, file: str, line: int) -> list[tuple[int, int]]:
        found, here = [], self.loop_around(file, line)
        while here is not None and here not in found:
            found.append(here)
            here = self.loop_around(file, here[0])
        return found

    def skips_before(self, file: str, line: int) -> list[Skip]:
        """What could leave the loop or function of a line before that line is reached."""
        loop = self.loop_around(file, line)
        function = self._function_at(file, line)
        if function is None:
            return []
        first, last = loop or (getattr(function, "lineno", 1), line)
        found = []
        for node in ast.walk(function):
            leaves = (ast.Return, ast.Continue, ast.Break) if loop is not None else (ast.Return,)
            if isinstance(node, leaves) and first < node.lineno <= last and self._function_of(node) is function:
                found.append(Skip(node.lineno, type(node).__name__.lower(), _in_handler(node), _condition_of(node)))
            if isinstance(node, ast.ExceptHandler) and node.lineno > first and _swallows(node) and _covers(node, line):
                found.append(Skip(node.lineno, "except", True, ""))
        return sorted(found, key=lambda skip: skip.line)

    def assignment_of(self, file: str, frame_line: int, name: str) -> int | None:
        """Where a variable used at a line got its value, in the same function."""
        function = self._function_at(file, frame_line)
        lines = [
            node.lineno
            for node in (ast.walk(function) if function is not None else ())
            if isinstance(node, ast.Assign)
            and node.lineno < frame_line
            and any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
        ]
        return max(lines, default=None)

    def argument_name(self, file: str, line: int, function: str, keyword: str, position: int) -> str:
        """The plain variable passed to a call at a line, e.g. for init_method=method; empty if it is no plain variable."""
        for node in ast.walk(self.tree(file) or ast.Module([], [])):
            if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or node.lineno) and _called_name(node) == function:
                given = next((k.value for k in node.keywords if k.arg == keyword), None)
                if given is None and len(node.args) > position:
                    given = node.args[position]
                return given.id if isinstance(given, ast.Name) else ""
        return ""

    def line_setting(self, file: str, variable: str) -> int | None:
        """The line that sets an environment variable, in Python or in a shell script."""
        tree = self.tree(file)
        if tree is None:
            for number, text in enumerate(self.sources.get(file, "").splitlines(), 1):
                if f"{variable}=" in text and not text.lstrip().startswith("#"):
                    return number
            return None
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == variable:
                return node.value.lineno
            if isinstance(node, ast.Assign) and any(_subscript_key(target) == variable for target in node.targets):
                return node.lineno
            if isinstance(node, ast.Dict):
                for key in node.keys:
                    if isinstance(key, ast.Constant) and key.value == variable:
                        return key.lineno
            if isinstance(node, ast.Call) and _called_name(node) in ("setdefault", "putenv") and _first_constant(node) == variable:
                return node.lineno
        return None

    def attribute_lines(self, attribute: str) -> list[tuple[str, int, str]]:
        """Where `self.<attribute> = …` (kind define), `x.<attribute> = …` (assign), and its uses under an `if` (guarded) or not (use)."""
        found = []
        for file in self.sources:
            for node in ast.walk(self.tree(file) or ast.Module([], [])):
                if isinstance(node, ast.Attribute) and node.attr == attribute:
                    owner = node.value.id if isinstance(node.value, ast.Name) else ""
                    if isinstance(node.ctx, ast.Store):
                        found.append((file, node.lineno, "define" if owner == "self" else "assign"))
                    elif owner == "self":
                        guards = self.guards(file, node.lineno)
                        found.append((file, guards[-1].line, "guarded") if guards else (file, node.lineno, "use"))
        return found

    def _function_at(self, file: str, line: int) -> ast.AST | None:
        tree = self.tree(file)
        best: ast.AST | None = tree
        for node in ast.walk(tree) if tree is not None else ():
            is_around = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.lineno <= line <= (node.end_lineno or line)
            if is_around and (best is tree or getattr(node, "lineno", 0) >= getattr(best, "lineno", 0)):
                best = node
        return best

    def _function_of(self, node: ast.AST) -> ast.AST:
        while not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
            node = node.parent  # type: ignore[attr-defined]
        return node

    def _statement_at(self, file: str, line: int) -> ast.AST | None:
        """The innermost statement (or the branch of a conditional expression) that covers a line."""
        covering = [
            node
            for node in ast.walk(self.tree(file) or ast.Module([], []))
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
        ]
        return max(covering, key=lambda node: (node.lineno, -(node.end_lineno or 0)), default=None)


class _Evaluator:
    """Works out an expression for one given rank, as far as it depends on nothing but rank and world size."""

    def __init__(self, book: SourceBook, frame: Frame, rank: int, world_size: int) -> None:
        self._book, self._frame, self._rank, self._world_size = book, frame, rank, world_size

    def value(self, node: ast.AST | None, depth: int) -> Any:
        if node is None or depth > 8:
            return UNKNOWN
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        try:
            return method(node, depth + 1) if method else UNKNOWN
        except (TypeError, ValueError, ZeroDivisionError, KeyError, RecursionError, OverflowError):
            return UNKNOWN

    def _constant(self, node: ast.Constant, depth: int) -> Any:
        return node.value

    def _name(self, node: ast.Name, depth: int) -> Any:
        return self._named(node.id, self._assigned(node.id, node.lineno), depth)

    def _attribute(self, node: ast.Attribute, depth: int) -> Any:
        return self._named(node.attr, self._assigned_attribute(node.attr), depth)

    def _named(self, name: str, assigned: ast.AST | None, depth: int) -> Any:
        value = self.value(assigned, depth) if assigned is not None else UNKNOWN
        if value is not UNKNOWN:
            return value
        lowered = name.lower().lstrip("_")
        if lowered in _RANK_NAMES:
            return self._rank
        if lowered in _SIZE_NAMES:
            return self._world_size
        return self._rank == 0 if lowered in _MAIN_NAMES else UNKNOWN

    def _call(self, node: ast.Call, depth: int) -> Any:
        name = _called_name(node).lower().lstrip("_")
        if name in ("get_rank", "rank", "get_global_rank", "get_local_rank", "local_rank"):
            return self._rank
        if name in ("get_world_size", "world_size"):
            return self._world_size
        if name in _MAIN_NAMES:
            return self._rank == 0
        if name in ("int", "bool") and len(node.args) == 1:
            inner = self.value(node.args[0], depth)
            return UNKNOWN if inner is UNKNOWN else int(inner) if name == "int" else bool(inner)
        if name in ("get", "getenv") and node.args and isinstance(node.args[0], ast.Constant):
            return self._variable(node.args[0].value)
        return self.value(self._returned_by(_called_name(node)), depth)

    def _subscript(self, node: ast.Subscript, depth: int) -> Any:
        key = _subscript_key(node)
        return self._variable(key) if key else UNKNOWN

    def _variable(self, name: Any) -> Any:
        return {"RANK": str(self._rank), "LOCAL_RANK": str(self._rank), "WORLD_SIZE": str(self._world_size)}.get(name, UNKNOWN)

    def _compare(self, node: ast.Compare, depth: int) -> Any:
        left = self.value(node.left, depth)
        for operator, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node, depth)
            if left is UNKNOWN or right is UNKNOWN:
                return UNKNOWN
            if not _COMPARE[type(operator).__name__](left, right):
                return False
            left = right
        return True

    def _boolop(self, node: ast.BoolOp, depth: int) -> Any:
        values = [self.value(part, depth) for part in node.values]
        decisive = isinstance(node.op, ast.Or)
        if any(value is not UNKNOWN and bool(value) == decisive for value in values):
            return decisive
        return UNKNOWN if UNKNOWN in values else not decisive

    def _unaryop(self, node: ast.UnaryOp, depth: int) -> Any:
        value = self.value(node.operand, depth)
        if value is UNKNOWN:
            return UNKNOWN
        return not value if isinstance(node.op, ast.Not) else -value if isinstance(node.op, ast.USub) else UNKNOWN

    def _binop(self, node: ast.BinOp, depth: int) -> Any:
        left, right = self.value(node.left, depth), self.value(node.right, depth)
        operator = _ARITHMETIC.get(type(node.op).__name__)
        return UNKNOWN if UNKNOWN in (left, right) or operator is None else operator(left, right)

    def _tuple(self, node: ast.Tuple | ast.List | ast.Set, depth: int) -> Any:
        values = [self.value(part, depth) for part in node.elts]
        return UNKNOWN if UNKNOWN in values else values

    _list = _set = _tuple

    def _assigned(self, name: str, line: int) -> ast.AST | None:
        function = self._book._function_at(self._frame.file, self._frame.line)
        return _last_assignment(function, name, line) or _last_assignment(self._book.tree(self._frame.file), name, 10**9, module_level=True)

    def _assigned_attribute(self, attribute: str) -> ast.AST | None:
        tree = self._book.tree(self._frame.file)
        values = [
            value
            for node in (ast.walk(tree) if tree is not None else ())
            if isinstance(node, ast.Assign)
            for target, value in _pairs(node)
            if isinstance(target, ast.Attribute) and target.attr == attribute
        ]
        return values[0] if len(values) == 1 else None

    def _returned_by(self, name: str) -> ast.AST | None:
        """The expression a small function returns, wherever in the user's files it stands."""
        for file in self._book.sources:
            for node in ast.walk(self._book.tree(file) or ast.Module([], [])):
                if isinstance(node, ast.FunctionDef) and node.name == name:
                    returns = [part for part in ast.walk(node) if isinstance(part, ast.Return)]
                    return returns[0].value if len(returns) == 1 else None
        return None


_COMPARE: dict[str, Any] = {
    "Eq": lambda a, b: a == b,
    "NotEq": lambda a, b: a != b,
    "Lt": lambda a, b: a < b,
    "LtE": lambda a, b: a <= b,
    "Gt": lambda a, b: a > b,
    "GtE": lambda a, b: a >= b,
    "In": lambda a, b: a in b,
    "NotIn": lambda a, b: a not in b,
    "Is": lambda a, b: a is b,
    "IsNot": lambda a, b: a is not b,
}
_ARITHMETIC: dict[str, Any] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mult": lambda a, b: a * b if isinstance(a, int) and isinstance(b, int) else UNKNOWN,
    "Mod": lambda a, b: a % b if isinstance(a, int) else UNKNOWN,
    "FloorDiv": lambda a, b: a // b,
}


def common_frames(a: Stack, b: Stack) -> tuple[Frame, Frame] | None:
    """The innermost function two stacks share, as each of them stands in it (the lines may differ)."""
    outer_a, outer_b = a[::-1], b[::-1]
    shared: tuple[Frame, Frame] | None = None
    for frame_a, frame_b in zip(outer_a, outer_b, strict=False):
        if (frame_a.file, frame_a.function) != (frame_b.file, frame_b.function):
            break
        shared = (frame_a, frame_b)
        if frame_a.line != frame_b.line:
            break
    return shared


def _guard(test: ast.expr, wanted: bool) -> Guard:
    return Guard(test, wanted, test.lineno, ast.unparse(test)[:120])


def _siblings_before(node: ast.AST, parent: ast.AST | None) -> list[ast.If]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and node in block:
            return [statement for statement in block[: block.index(node)] if isinstance(statement, ast.If)]
    return []


def _always_leaves(node: ast.If) -> bool:
    return not node.orelse and isinstance(node.body[-1], (ast.Return, ast.Continue, ast.Break, ast.Raise))


def _called_name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""


def _first_constant(node: ast.Call) -> object:
    return node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None


def _subscript_key(node: ast.AST) -> str:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return node.slice.value
    return ""


def _last_assignment(scope: ast.AST | None, name: str, before: int, module_level: bool = False) -> ast.AST | None:
    best: ast.AST | None = None
    nodes = scope.body if module_level and isinstance(scope, ast.Module) else ast.walk(scope) if scope is not None else ()
    for node in nodes:
        if isinstance(node, ast.Assign) and node.lineno < before:
            for target, value in _pairs(node):
                if isinstance(target, ast.Name) and target.id == name:
                    best = value
    return best


def _pairs(node: ast.Assign) -> list[tuple[ast.AST, ast.AST]]:
    pairs: list[tuple[ast.AST, ast.AST]] = []
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and len(target.elts) == len(node.value.elts):
            pairs += list(zip(target.elts, node.value.elts, strict=True))
        else:
            pairs.append((target, node.value))
    return pairs


def _in_handler(node: ast.AST) -> bool:
    while node is not None and not isinstance(node, (*_FUNCTIONS, ast.Module)):
        if isinstance(node, ast.ExceptHandler):
            return True
        node = getattr(node, "parent", None)  # type: ignore[assignment]
    return False


def _condition_of(node: ast.AST) -> str:
    parent = getattr(node, "parent", None)
    return ast.unparse(parent.test)[:120] if isinstance(parent, ast.If) else ""


def _swallows(handler: ast.ExceptHandler) -> bool:
    return not any(isinstance(node, (ast.Raise, ast.Return, ast.Continue, ast.Break)) for node in ast.walk(handler))


def _covers(handler: ast.ExceptHandler, line: int) -> bool:
    attempt = getattr(handler, "parent", None)
    return isinstance(attempt, ast.Try) and attempt.lineno <= line < handler.lineno
