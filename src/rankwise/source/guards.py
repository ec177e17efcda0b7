"""Which conditions must hold for a line to run (branches around it, early exits before it), and what may skip it."""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass

from rankwise.evidence.records import Frame
from rankwise.source.rank_words import is_question
from rankwise.source.tree import (
    FUNCTIONS,
    LOOPS,
    ancestors,
    block_of,
    called_name,
    covers,
    last_line,
    last_name,
    own_nodes,
    owner_name,
    parent_of,
    scope_of,
    string_key,
    text_of,
)

_LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_EXITS = (("", "exit"), ("", "quit"), ("sys", "exit"), ("os", "_exit"), ("os", "abort"))
_ASKS_FOR_FILE = {"exists", "lexists", "isfile", "isdir", "is_file", "is_dir", "access"}
_IDLE = {"sleep", "time", "monotonic", "perf_counter", "print", "debug", "info", "warning", "join", "Path", "str", "len", "TimeoutError"}
_WORKS = (ast.Await, ast.Yield, ast.YieldFrom, ast.MatMult)


@dataclass(frozen=True)
class Guard:
    """A condition that must hold for a line to be reached."""

    test: ast.expr
    wanted: bool
    mark: str = ""  # "@" for a decorator
    frame: Frame | None = None  # the stack's frame that this condition guards

    @property
    def line(self) -> int:
        return self.test.lineno

    @property
    def text(self) -> str:
        return self.mark + text_of(self.test)

    @property
    def place(self) -> str:
        """`train.py:42`; `line 42` where the frame is not known."""
        return f"{os.path.basename(self.frame.file)}:{self.line}" if self.frame else f"line {self.line}"

    @property
    def condition(self) -> str:
        """What must be true, in code."""
        return self.text if self.wanted else text_of(ast.UnaryOp(ast.Not(), self.test))


@dataclass(frozen=True)
class Skip:
    """A statement that leaves a block early: continue, break, return, or the end of an except block."""

    line: int
    kind: str
    in_handler: bool = False
    guard: str = ""


@dataclass(frozen=True)
class LoopStatement:
    """A loop: its lines, what it iterates over or its condition, and the statements that leave it."""

    start: int
    end: int
    is_while: bool
    text: str
    exits: tuple[Skip, ...] = ()


def guards_at(statement: ast.stmt, line: int, called: str = "") -> list[Guard]:
    """The conditions for a line to run, and those within the line that hold for everything in it that a rank can be waiting in.

    `called`: the function that the line has called, where that is known.
    """
    works = [node for node in own_nodes(statement) if isinstance(node, ast.expr) and covers(node, line) and _works(node)]
    named = [node for node in works if isinstance(node, ast.Call) and called and called_name(node) == called]
    ways = [guards_around(node, line) for node in named or works] or [guards_around(statement, line)]
    return [guard for guard in ways[0] if all(guard in way for way in ways)]


def guards_around(node: ast.AST, line: int = 0) -> list[Guard]:
    """The conditions for a node to run, within its function, outermost first. With `line`, conditions that a rank on that line may still be
    evaluating are left out."""
    found: list[Guard] = []  # innermost first
    above = parent_of(node)
    while above is not None and not isinstance(node, FUNCTIONS):
        found += reversed(_passed_before(node))
        if _may_be_in_test(above, line):
            found = []  # `if check(): act()` in one line: the rank may be in check()
        else:
            found += reversed(_conditions(above, node))
        node, above = above, parent_of(above)
    return found[::-1]


def _conditions(above: ast.AST, node: ast.AST) -> list[Guard]:
    """The conditions under which a node runs its child."""
    match above:
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return []  # the same for every rank of a job
        case ast.If(test=test, body=body, orelse=orelse) if node in body or node in orelse:
            return [Guard(test, node in body)]
        case ast.While(test=test, body=body) if node in body:
            return [Guard(test, True)]
        case ast.IfExp(test=test, body=then) if node is not test:
            return [Guard(test, node is then)]
        case ast.BoolOp(op=op, values=values):
            return [Guard(value, isinstance(op, ast.And)) for value in values[: values.index(node)]]  # type: ignore[arg-type]
        case ast.ListComp(generators=generators) | ast.SetComp(generators=generators) | ast.GeneratorExp(generators=generators):
            return [Guard(test, True) for generator in generators for test in generator.ifs] if node not in generators else []
    return []


def _may_be_in_test(above: ast.AST, line: int) -> bool:
    return line > 0 and isinstance(above, (ast.If, ast.While)) and line <= last_line(above.test) and not _is_inert(above.test)


def _is_inert(node: ast.AST) -> bool:
    """True for an expression that no rank can be waiting in: names, numbers, questions about the rank."""
    return not any(map(_works, ast.walk(node)))


def _works(node: ast.AST) -> bool:
    """True for an operation that a rank can be waiting in, unlike a question about the rank."""
    if isinstance(node, ast.Call):
        return not is_question(node)
    return isinstance(node, _WORKS) or (isinstance(node, ast.Subscript) and not string_key(node))


# -- early exits --------------------------------------------------------------------------------------------------------------


def _passed_before(node: ast.AST) -> list[Guard]:
    """The conditions of the early exits that stand before a statement in its block."""
    block = block_of(node)
    earlier = block[: block.index(node)] if isinstance(node, ast.stmt) and block else []
    return [guard for statement in earlier if isinstance(statement, ast.If) for guard in _passed(statement)]


def _passed(branch: ast.If) -> list[Guard]:
    """The conditions that hold after an `if` of which only one branch goes on."""
    stops, other_stops = leaves(branch.body), leaves(branch.orelse)
    if stops == other_stops:
        return []
    way = branch.orelse if stops else branch.body
    return [Guard(branch.test, other_stops), *(g for inner in way if isinstance(inner, ast.If) for g in _passed(inner))]


def leaves(block: list[ast.stmt]) -> bool:
    """True if no statement after a block is reached from it."""
    try:
        return any(_leaves(statement) for statement in block)
    except RecursionError:  # hundreds of elif
        return False


def _leaves(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=function)):
            return (owner_name(function), last_name(function)) in _EXITS
        case ast.If(body=body, orelse=orelse):
            return leaves(body) and leaves(orelse)
        case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
            return leaves(body) and not any(last_name(getattr(item.context_expr, "func", None)) == "suppress" for item in items)
        case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=last):
            return leaves(last) or (leaves([*body, *orelse]) and all(leaves(handler.body) for handler in handlers))
        case ast.While(test=ast.Constant(value=True)):
            return not any(isinstance(node, ast.Break) for node in ast.walk(statement))
    return isinstance(statement, _LEAVES)


# -- what may skip a line -----------------------------------------------------------------------------------------------------


def find_skips(scope: ast.AST, line: int) -> list[Skip]:
    """The statements of a loop or function that may keep ranks from reaching a line of it, in this round or a later one."""
    found = [_skip(node, line, scope) for node in own_nodes(scope)]
    return sorted((skip for skip in found if skip is not None), key=lambda skip: skip.line)


def loop_of(node: ast.For | ast.AsyncFor | ast.While) -> LoopStatement:
    exits = tuple(skip for skip in find_skips(node, last_line(node)) if skip.kind in ("break", "return"))
    is_while = isinstance(node, ast.While)
    return LoopStatement(node.lineno, last_line(node), is_while, text_of(node.test if isinstance(node, ast.While) else node.iter), exits)


def polled_condition(loop: ast.While) -> str:
    """The condition about a file that a loop waits for, if its rounds only check, sleep, count and print; empty for any other loop."""
    calls = [node for node in ast.walk(loop) if isinstance(node, ast.Call)]
    asking = [call for call in calls if called_name(call) in _ASKS_FOR_FILE]
    if not asking or not all(called_name(call) in (*_ASKS_FOR_FILE, *_IDLE) for call in calls):
        return ""
    return text_of(loop.test) if asking[0] in ast.walk(loop.test) else text_of(asking[0])


def _skip(node: ast.AST, line: int, scope: ast.AST) -> Skip | None:
    if isinstance(node, ast.ExceptHandler):
        return caught_by(node, line)
    if not isinstance(node, (ast.Return, ast.Break, ast.Continue)):
        return None
    if isinstance(node, ast.Return) and node.lineno < line <= last_line(node):
        return None  # the line belongs to a return statement of several lines, which has not left yet
    is_round = isinstance(scope, LOOPS)  # in a loop, a statement after the line that leaves it skips the line in later rounds
    if isinstance(node, (ast.Break, ast.Continue)) and next(a for a in ancestors(node) if isinstance(a, LOOPS)) is not scope:
        return None
    handlers = [a for a in ancestors(node) if isinstance(a, ast.ExceptHandler) and scope_of(a) is scope_of(node)]
    if node.lineno > line and (isinstance(node, ast.Continue) or not is_round) and not any(_covers(handler, line) for handler in handlers):
        return None
    above = parent_of(node)
    condition = Guard(above.test, node in above.body).condition if isinstance(above, ast.If) else ""
    return Skip(node.lineno, type(node).__name__.lower(), bool(handlers), condition)


def caught_by(handler: ast.ExceptHandler, line: int) -> Skip | None:
    """An except block that swallows what is raised at a line."""
    return Skip(handler.lineno, "except", True) if _swallows(handler) and _covers(handler, line) else None


def _swallows(handler: ast.ExceptHandler) -> bool:
    return not any(isinstance(node, (ast.Raise, ast.Return, ast.Continue, ast.Break)) for node in ast.walk(handler))


def _covers(handler: ast.ExceptHandler, line: int) -> bool:
    attempt = parent_of(handler)
    return isinstance(attempt, (ast.Try, ast.TryStar)) and attempt.body[0].lineno <= line <= last_line(attempt.body[-1])
