"""Reads from the code what may have kept a rank from a call, or led it out of a loop: the candidates, not the verdict."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rankwise.evidence.records import Frame, Stack
from rankwise.source.book import SourceBook, with_called
from rankwise.source.guards import LoopStatement, Skip

_VERBS = {"continue": "continues", "return": "returns", "break": "breaks out of the loop", "except": "catches an exception"}


@dataclass(frozen=True)
class Reason:
    """One line of the user's code that explains why a rank went another way."""

    frame: Frame
    kind: str  # continue, return, break, except, condition, while, data
    text: str


@dataclass(frozen=True)
class LeftLoops:
    """The loops that one rank is still in and another one has left, and what can have led it out."""

    left: tuple[tuple[Frame, LoopStatement], ...]  # innermost first, with the line at which the one inside stands in each
    reasons: tuple[Reason, ...]
    is_in_another: bool = False  # both are still in a loop around these: then the other may only be at the end of its round

    def place(self) -> str:
        """Where the outermost of them begins."""
        return f"{os.path.basename(self.left[0][0].file)}:{self.left[-1][1].start}"

    def are_around(self, frame: Frame) -> bool:
        """True for a line within one of them."""
        return any(frame.file == inside.file and loop.start <= frame.line <= loop.end for inside, loop in self.left)


def find_skips(book: SourceBook, before: Stack, missed: Stack) -> list[Reason]:
    """What can lead a rank past `missed` after it was at `before`: statements that leave, handlers, conditions around the call."""
    found: list[Reason] = []
    shared = book.shared_frames(before, missed)
    frames = missed if shared is None else (*below(missed, shared[1]), shared[1])
    for frame, called in with_called(frames):
        start = shared[0].line if shared is not None and frame == shared[1] and shared[0].line < frame.line else 0
        skips = [skip for skip in book.skips_before(frame.file, frame.line) if skip.in_handler or start < skip.line < frame.line]
        found += [_of_skip(frame, skip) for skip in skips]
        guards_known = {skip.guard for skip in skips}
        known = _met_by_both(book, shared, start) if shared is not None and frame == shared[1] else set()
        for guard in book.guards(frame.file, frame.line, called):
            if guard.text not in guards_known and guard.line not in known and guard.line > start:
                place = Frame(frame.file, guard.line, frame.function)
                found.append(Reason(place, "condition", f"only when `{guard.condition}`"))
    return list(dict.fromkeys(found))


def _met_by_both(book: SourceBook, shared: tuple[Frame, Frame], start: int) -> set[int]:
    """Lines of conditions that held for both calls; without those inside a loop whose next round began between the calls."""
    before, missed = shared
    met = {guard.line for guard in book.guards(before.file, before.line)}
    rounds = [] if start else [loop.start for loop in book.loops_at(missed.file, missed.line) if loop.start <= before.line <= loop.end]
    return {line for line in met if line < max(rounds, default=line + 1)}


def find_left_loops(book: SourceBook, inside: Stack, outside: Stack) -> LeftLoops | None:
    """The loops around `inside` that `outside` has left, innermost first; None if there are none."""
    shared = book.shared_frames(inside, outside)
    if shared is None and outside:
        return None
    frames = below(inside, shared[0]) if shared is not None else inside
    if shared is not None and any(loop.start == shared[0].line for loop in book.loops_at(shared[1].file, shared[1].line)):
        frames = ()  # `for x in generator():` a rank in the loop's body has not left the loops inside the generator
    left = [(frame, loop) for frame in frames for loop in book.loops_at(frame.file, frame.line)]
    if shared is not None:
        here, there = shared
        around = book.loops_at(here.file, here.line)
        left += [(here, loop) for loop in around if there.line > loop.end]
    if not left:
        return None
    reasons = [reason for frame, loop in left for reason in _exits(frame, loop)]
    outer = [] if shared is None else [frame for frame in inside if frame not in frames]
    is_in_another = any(loop not in [one for _, one in left] for frame in outer for loop in book.loops_at(frame.file, frame.line))
    return LeftLoops(tuple(left), tuple(dict.fromkeys(reasons)), is_in_another)


def find_catches(book: SourceBook, inside: Stack, outside: Stack) -> list[Reason]:
    """The except blocks around `inside`, and not around `outside`, that an exception may have led to: from there the rank goes on."""
    shared = book.shared_frames(inside, outside)
    frames = inside if shared is None else (*below(inside, shared[0]), shared[0])
    known = [] if shared is None else [skip.line for skip in book.handlers_for(shared[1])]
    return [_of_skip(frame, skip) for frame in frames for skip in book.handlers_for(frame) if skip.line not in known]


def _exits(frame: Frame, loop: LoopStatement) -> list[Reason]:
    """What can end a loop: the statements that leave it, its condition, the end of what it goes over."""
    found = [_of_skip(frame, skip) for skip in loop.exits]
    place = Frame(frame.file, loop.start, frame.function)
    if loop.is_while and loop.text not in ("True", "1"):
        found.append(Reason(place, "while", f"goes on only while `{loop.text}`"))
    if not loop.is_while:
        found.append(Reason(place, "data", f"ends when `{loop.text}` does"))
    return found


def _of_skip(frame: Frame, skip: Skip) -> Reason:
    when = f" when `{skip.guard}`" if skip.guard else " after an exception" if skip.in_handler and skip.kind != "except" else ""
    return Reason(Frame(frame.file, skip.line, frame.function), skip.kind, f"{_VERBS[skip.kind]}{when}")


def reasons_text(reasons: list[Reason]) -> str:
    """`train.py:48 continues when `not finite``; of several, the first four."""
    texts = [f"{os.path.basename(reason.frame.file)}:{reason.frame.line} {reason.text}" for reason in reasons[:4]]
    return " or ".join(texts) + (" or …" if len(reasons) > 4 else "")


def below(stack: Stack, frame: Frame) -> Stack:
    """The frames that were called from a frame, innermost first."""
    return stack[: len(stack) - 1 - stack[::-1].index(frame)] if frame in stack else ()
