"""Reads tracebacks out of log text: the only witness of a process that ran without the probe."""

from __future__ import annotations

import re

from rankwise.evidence.records import Frame, Raised

_HEAD = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+), in (.+)$')
_LAST = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?$")


def find_tracebacks(text: str, time_ns: int) -> list[Raised]:
    """Every whole traceback in a text, in order."""
    found = []
    for block in text.split(_HEAD)[1:]:
        raised = _read_block(block, time_ns)
        if raised is not None:
            found.append(raised)
    return found


def last_exception(text: str) -> str:
    """What a C++ exception that nobody caught said of itself, as the runtime prints it before it aborts; empty if none did."""
    _, found, said = text.rpartition("what():")
    return said.strip().split("\n")[0][:400] if found else ""


def _read_block(block: str, time_ns: int) -> Raised | None:
    frames: list[Frame] = []
    for line in block.splitlines():
        match = _FRAME.match(line)
        if match:
            frames.append(Frame(match[1], int(match[2]), match[3].strip()))
        elif frames and (last := _LAST.match(line)) is not None:
            return Raised(last[1], last[2] or "", tuple(reversed(frames)), time_ns, text=_HEAD + block[:8000])
    return None
