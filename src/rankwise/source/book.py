"""Answers questions about a line of the user's code: which ranks can reach it, which loops are around it, what may have skipped it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from rankwise.evidence.records import Frame, JobEvidence, Stack
from rankwise.ranks import read_rank_env
from rankwise.source.guards import Guard, LoopStatement, Skip, caught_by, find_skips, guards_at, leaves, loop_of, polled_condition
from rankwise.source.names import Names
from rankwise.source.rank_conditions import Position, RankConditions, find_misnamed
from rankwise.source.rank_words import meaning_of, zero_only_mark
from rankwise.source.settings import find_python_setting, find_shell_setting
from rankwise.source.tree import (
    FUNCTIONS,
    LOOPS,
    ancestors,
    called_name,
    covers,
    last_line,
    last_name,
    once,
    own_nodes,
    parameters_of,
    parse,
    scope_of,
)

_ENOUGH = 64  # a condition that is not understood for the first so many ranks is not tried for the others


@dataclass
class SourceBook:
    """The user's files, parsed on first use. A file that does not parse is treated as unknown."""

    sources: dict[str, str]
    local_ranks: dict[int, int] | None = None  # by rank; None for a job on one host, where they are the ranks
    _truths: dict[tuple[object, ...], dict[int, bool | None]] = field(default_factory=dict)  # condition: whether it holds, by rank
    _same_for_all: set[tuple[object, ...]] = field(default_factory=set)  # conditions that do not depend on the rank

    @classmethod
    def of_job(cls, job: JobEvidence) -> SourceBook:
        """The sources of a job, and the local rank of each rank."""
        known = {rank: read_rank_env(evidence.env).local_rank for rank, evidence in job.ranks.items()}
        if len({evidence.host for evidence in job.ranks.values()}) <= 1:
            known = {rank: rank if local is None else local for rank, local in known.items()}
        return cls(job.sources, {rank: local for rank, local in known.items() if local is not None})

    def __post_init__(self) -> None:
        self._names = Names(self._trees_with)
        self._conditions = RankConditions(self._names)

    def line_text(self, file: str, line: int) -> str:
        lines = self._lines_of(file)
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""

    @once
    def tree(self, file: str) -> ast.Module | None:
        return parse(self.sources[file]) if file in self.sources else None

    # -- conditions -----------------------------------------------------------------------------------------------------------

    @once
    def guards(self, file: str, line: int, called: str = "") -> list[Guard]:
        """The conditions around a line inside its function, within it, and the early exits before it (`if …: return`), outermost first.

        `called`: the function that the line has called, where that is known."""
        statement = self._statement_at(file, line)
        try:
            return guards_at(statement, line, called) if statement is not None else []
        except RecursionError:  # thousands of nested blocks
            return []

    def ranks_reaching(self, stack: Stack, ranks: list[int], world_size: int) -> tuple[set[int], Guard | None]:
        """Which ranks can be at this place, by the rank conditions around each of its frames, and the condition that decides."""
        reaching, decisive, misnamed = set(ranks), None, self._misnamed(stack)
        for frame, called in with_called(stack):
            for guard, passing in self._rank_guards(frame, called, ranks, world_size, misnamed):
                if passing and passing != set(ranks):  # a condition that seems to let no rank through was misunderstood
                    decisive = decisive or (replace(guard, frame=frame) if guard is not None else None)
                    reaching &= passing
        return (reaching, decisive) if reaching else (set(ranks), None)

    def _misnamed(self, stack: Stack) -> frozenset[ast.AST]:
        """The parameters of the stack's functions that are called `rank` and the like but were given something else."""
        found: set[ast.AST] = set()
        for frame, caller in list(pairwise(stack))[::-1]:  # from the outermost call inwards
            function = self._function_at(frame.file, frame.line)
            if isinstance(function, FUNCTIONS) and any(meaning_of(name) for name in parameters_of(function)):
                for node in self._nodes_around(caller):
                    if isinstance(node, ast.Call) and called_name(node) == function.name and covers(node, caller.line):
                        found |= find_misnamed(self._names, function, node, found)
        return frozenset(found)

    def _rank_guards(
        self, frame: Frame, called: str, ranks: list[int], world_size: int, misnamed: frozenset[ast.AST]
    ) -> Iterator[tuple[Guard | None, set[int]]]:
        function = self._function_at(frame.file, frame.line)
        if function is None:
            yield (None, {0} & set(ranks) if zero_only_mark(frame.function) else set(ranks))
        elif _is_same_function(function, frame):
            for mark in getattr(function, "decorator_list", []):
                if zero_only_mark(last_name(mark)):
                    yield Guard(mark, True, "@"), {0} & set(ranks)
            for guard in self.guards(frame.file, frame.line, called):
                truths = self._truths_of(guard.test, ranks, world_size, misnamed)
                yield guard, {rank for rank in ranks if not truths or truths[rank] in (None, guard.wanted)}

    def _truths_of(
        self, test: ast.expr, ranks: list[int], world_size: int, misnamed: frozenset[ast.AST] = frozenset()
    ) -> dict[int, bool | None]:
        """Whether a condition holds, by rank; empty for a condition that does not depend on the rank."""
        key = (test, world_size, misnamed)
        known = self._truths.setdefault(key, {})
        for rank in ranks if key not in self._same_for_all else ():
            if rank not in known:
                local_rank = rank if self.local_ranks is None else self.local_ranks.get(rank)
                truth = self._conditions.truth(test, Position(rank, world_size, local_rank, misnamed))
                known[rank] = truth
                if not self._conditions.depends_on_rank or (len(known) == _ENOUGH and set(known.values()) == {None}):
                    self._same_for_all.add(key)
                    known.clear()
                    break
        return known

    def branch_taken_by(self, frame: Frame, ranks: list[int], world_size: int) -> tuple[set[int], int] | None:
        """A rank-dependent `if` earlier in this frame's function whose body only some of these ranks ran: these ranks, and its line."""
        for node in self._nodes_around(frame):
            if isinstance(node, ast.If) and node.lineno < frame.line and not leaves(node.body):
                held = self._truths_of(node.test, ranks, world_size)
                if held and {held[rank] for rank in ranks} >= {True, False}:
                    return {rank for rank in ranks if held[rank]}, node.lineno
        return None

    def has_twin_call(self, frame: Frame, op: str, others: list[int], ranks: list[int], world_size: int) -> bool:
        """True if the same function calls the same collective again, in a place that those other ranks reach and these do not."""
        for node in self._nodes_around(frame):
            if isinstance(node, ast.Call) and called_name(node) == op and node.lineno != frame.line:
                reaching, guard = self.ranks_reaching((Frame(frame.file, node.lineno, frame.function),), [*others, *ranks], world_size)
                if guard is not None and reaching == set(others):
                    return True
        return False

    def shared_frames(self, a: Stack, b: Stack) -> tuple[Frame, Frame] | None:
        """The innermost function two stacks share; two methods of the same name are told apart where the source is known."""
        shared = common_frames(a, b)
        if shared is not None and self.tree(shared[0].file) is not None:
            one, other = (self._function_at(frame.file, frame.line) for frame in shared)
            return shared if one is other else None
        return shared

    # -- structure ------------------------------------------------------------------------------------------------------------

    def end_of_function(self, file: str, line: int) -> int:
        """The last line of the function around a line; the line itself outside of functions."""
        function = self._function_at(file, line)
        return last_line(function) if isinstance(function, FUNCTIONS) else line

    def loops_at(self, file: str, line: int) -> list[LoopStatement]:
        """The loops around a line inside its function, innermost first, with what may end them."""
        return [loop_of(node) for node in self._loops_at(file, line)]

    def _loops_at(self, file: str, line: int) -> list[ast.For | ast.AsyncFor | ast.While]:
        chain = self._blocks_around(file, line)
        return [above for below, above in pairwise(chain) if isinstance(above, LOOPS) and below in above.body]

    def _blocks_around(self, file: str, line: int) -> list[ast.AST]:
        """The statement of a line and the nodes around it inside its function, innermost first."""
        found: list[ast.AST] = []
        statement = self._statement_at(file, line)
        for node in (statement, *ancestors(statement)) if statement is not None else ():
            found.append(node)
            if isinstance(node, FUNCTIONS):
                break
        return found

    def file_polled_at(self, file: str, line: int) -> str:
        """The condition of the loop around a line, if the loop only sleeps and checks for a file; else empty."""
        loop = next(iter(self._loops_at(file, line)), None)
        return polled_condition(loop) if isinstance(loop, ast.While) else ""

    def handlers_around(self, stack: Stack) -> list[Frame]:
        """The except blocks that a stack stands in, innermost first."""
        return [
            Frame(frame.file, node.lineno, frame.function)
            for frame in stack
            for node in self._blocks_around(frame.file, frame.line)
            if isinstance(node, ast.ExceptHandler)
        ]

    def handlers_for(self, frame: Frame) -> list[Skip]:
        """The except blocks that would catch an exception at a line and go on after it, innermost first."""
        tries = [node for node in self._blocks_around(frame.file, frame.line) if isinstance(node, (ast.Try, ast.TryStar))]
        return [skip for one in tries for handler in one.handlers if (skip := caught_by(handler, frame.line)) is not None]

    @once
    def skips_before(self, file: str, line: int) -> list[Skip]:
        """What could leave the loop or function of a line before that line is reached, in this round or a later one."""
        scope = next(iter(self._loops_at(file, line)), None) or self._function_at(file, line)
        return find_skips(scope, line) if scope is not None else []

    def line_setting(self, file: str, variable: str) -> int | None:
        """The line that sets an environment variable, in Python or in a shell script."""
        tree = self.tree(file)
        found = find_python_setting(tree, variable) if tree is not None else None
        if found is None and (tree is None or not file.endswith(".py")):  # a shell script may parse as Python: MASTER_PORT=29500
            return find_shell_setting(self._lines_of(file), variable)
        return found

    def attribute_lines(self, attribute: str) -> list[tuple[str, int, str]]:
        """Where `self.<attribute> = …` (kind define), `x.<attribute> = …` (assign), and its uses under an `if` (guarded) or not (use)."""
        found = []
        for file in self.sources:
            for node in ast.walk(self.tree(file) or ast.Module([], [])) if attribute in self.sources[file] else ():
                if isinstance(node, ast.Attribute) and node.attr == attribute:
                    owner = node.value.id if isinstance(node.value, ast.Name) else ""
                    if isinstance(node.ctx, ast.Store):
                        found.append((file, node.lineno, "define" if owner == "self" else "assign"))
                    elif owner == "self":
                        guards = self.guards(file, node.lineno)
                        found.append((file, guards[-1].line, "guarded") if guards else (file, node.lineno, "use"))
        return found

    def lines_that_stop_sync(self) -> list[Frame]:
        """Where the user's code switches DDP's gradient synchronisation off: assignments of the flag, else `with model.no_sync()`."""
        flags = [
            Frame(file, line, "") for file, line, kind in self.attribute_lines("require_backward_grad_sync") if kind in ("define", "assign")
        ]
        blocks = [
            Frame(file, number, "")
            for file, source in self.sources.items()
            if "no_sync(" in source
            for number, text in enumerate(self._lines_of(file), 1)
            if ".no_sync(" in text and not text.lstrip().startswith("#")
        ]
        return flags or blocks

    # -- the pages ------------------------------------------------------------------------------------------------------------

    @once
    def _lines_of(self, file: str) -> list[str]:
        text = self.sources.get(file, "").replace("\r\n", "\n").replace("\r", "\n")
        return text.split("\n")  # splitlines() would also split at form feeds, which Python does not count

    @once
    def _trees_with(self, text: str) -> list[ast.Module]:
        return [tree for file, source in self.sources.items() if text in source and (tree := self.tree(file)) is not None]

    @once
    def _statements(self, file: str) -> dict[int, ast.stmt]:
        """The innermost statement of each line."""
        lines: dict[int, ast.stmt] = {}
        for node in ast.walk(self.tree(file) or ast.Module([], [])):  # outer statements first, so that inner ones overwrite them
            if isinstance(node, ast.stmt):
                lines.update(dict.fromkeys(range(node.lineno, last_line(node) + 1), node))
        return lines

    def _statement_at(self, file: str, line: int) -> ast.stmt | None:
        return self._statements(file).get(line)

    def _function_at(self, file: str, line: int) -> ast.AST | None:
        """The function around a line, or the module."""
        statement = self._statement_at(file, line)
        if statement is None:
            return self.tree(file)
        return statement if isinstance(statement, FUNCTIONS) else scope_of(statement)

    def _nodes_around(self, frame: Frame) -> Iterator[ast.AST]:
        function = self._function_at(frame.file, frame.line)
        return own_nodes(function) if function is not None and _is_same_function(function, frame) else iter(())


def with_called(stack: Stack) -> Iterator[tuple[Frame, str]]:
    """Each frame with the function that it has called; the innermost one's is not known."""
    return zip(stack, ("", *(frame.function for frame in stack[:-1])), strict=True) if stack else iter(())


def common_frames(a: Stack, b: Stack) -> tuple[Frame, Frame] | None:
    """The innermost function two stacks share, as each of them stands in it (the lines may differ)."""
    shared: tuple[Frame, Frame] | None = None
    for frame_a, frame_b in zip(a[::-1], b[::-1]):
        if (frame_a.file, frame_a.function) != (frame_b.file, frame_b.function):
            break
        shared = (frame_a, frame_b)
        if frame_a.line != frame_b.line:
            break
    return shared


def _is_same_function(function: ast.AST, frame: Frame) -> bool:
    """False if the file was edited since the job started: then other lines run than the file shows."""
    name = frame.function.rsplit(".", 1)[-1]
    return not isinstance(function, FUNCTIONS) or not name.isidentifier() or function.name == name
