"""Small phrases that findings share."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TypeVar

from rankwise.evidence.records import Frame, Raised
from rankwise.findings import Finding, Place, Wait, ranks_text, where

_SUMMARY = 99  # characters: one line of a terminal, beside the code
_INSIDE = {  # what DDP or FSDP was doing: beside its operation, in a headline, as a call in a history
    "backward": ("in backward", "the gradient {}", "the backward"),
    "forward": ("in the DDP forward", "a DDP forward", "the forward"),
    "fsdp_forward": ("in the sharded model's forward, FSDP", "a forward of the sharded model (FSDP)", "the sharded model's forward"),
    "ddp": ("in the DDP constructor", "the DDP constructor", "the DDP constructor"),
}
_P = TypeVar("_P", Place, Wait)


def at(frame: Frame | None) -> str:
    """` at train.py:88 main()`, or nothing where the place is unknown."""
    return f" at {where(os.path.basename(frame.file), frame.line, frame.function)}" if frame else ""


def seconds_text(seconds: float) -> str:
    """`8 s`, `2 min 10 s`, `1 h 5 min`: never more than two units."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def verb(ranks: list[int] | set[int], one: str, many: str) -> str:
    """`rank 3 waits`, `ranks 0-2 wait`."""
    return f"{ranks_text(ranks)} {one if len(set(ranks)) == 1 else many}"


def op_text(op: str, inside: str) -> str:
    """An operation as a user knows it; `inside` is what DDP or FSDP was doing."""
    if inside not in _INSIDE:
        return "a collective" if op == "unknown" else op
    gradients = "gradients, " if inside == "backward" and "reduce" in op else ""
    return f"{op} ({gradients}{_INSIDE[inside][0]})"


def short_op_text(op: str, inside: str) -> str:
    """An operation in a headline."""
    return _INSIDE[inside][1].format(op) if inside in _INSIDE else op


def event_text(op: str) -> str:
    """A call in the history of a rank: `the backward`, or the operation's own name."""
    return _INSIDE[op][2] if op in _INSIDE else op


def first_line(message: str, length: int = 200) -> str:
    """The first line of an exception's message; for one that a DataLoader worker raised, the message it had in the worker."""
    lines = [line for line in message.splitlines() if line.strip()]
    if "Original Traceback" in message and lines:
        return lines[-1].strip()[:length]
    return (lines[0].strip() if lines else "")[:length]


def error_text(raised: Raised) -> str:
    """`ValueError: what it says`, in one line."""
    said = first_line(raised.message)
    name = class_name(raised.type)
    return said if said.startswith(f"{name}:") else f"{name}: {said}" if said else name


def class_name(name: str) -> str:
    """The name of an exception without its module."""
    return name.rsplit(".", 1)[-1]


def group_text(group: str) -> str:
    return "" if group in ("0", "") else f" of group {group}"


def relative_to(finding: Finding, cwd: str) -> Finding:
    """Paths as the user would open them from where the job was started."""
    return replace(
        finding,
        culprits=tuple(_relative(place, cwd) for place in finding.culprits),
        waiting=tuple(_relative(wait, cwd) for wait in finding.waiting),
    )


def in_short(finding: Finding) -> Finding:
    """The finding with a summary that fits a line; a longer one stands whole in `why`."""
    if len(finding.summary) <= _SUMMARY:
        return finding
    head = finding.summary[:_SUMMARY]
    clause = max(head.rfind(mark) for mark in ("; ", ": ", ", ", " (", ". "))
    if clause > _SUMMARY // 2 and _closes_its_brackets(head[:clause]):
        short = head[:clause]
    else:  # cut after a word, but never inside a shape or a list of ranks
        word = max((place for place, sign in enumerate(head) if sign == " " and _closes_its_brackets(head[:place])), default=len(head))
        short = head[:word] + " …" * (not head.startswith(" (", word))
    return replace(finding, summary=short, why=f"{finding.summary}; {finding.why}" if finding.why else finding.summary)


def _closes_its_brackets(text: str) -> bool:
    return all(text.count(opening) == text.count(closing) for opening, closing in ("()", "[]", "{}"))


def _relative(place: _P, cwd: str) -> _P:
    if not place.file or not cwd or not place.file.startswith(cwd.rstrip("/") + "/"):
        return place
    return replace(place, file=os.path.relpath(place.file, cwd))
