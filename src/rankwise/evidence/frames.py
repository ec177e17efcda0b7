"""Tells the user's own frames from those of Python and of installed packages, and reads tracebacks out of log text."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from rankwise.evidence.records import Frame, Raised, Stack

_LIBRARY_MARKS = ("/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3", "rankwise/probe/")
_OWN = f"{Path(__file__).parents[1]}/"  # rankwise's own folder, which may lie outside of site-packages
_HEAD = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+), in (.+)$')
_LAST = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?$")


@lru_cache(maxsize=4096)  # asked for every frame of every stack
def is_user_file(file: str) -> bool:
    """True for the user's own code; `<string>` counts, since `python -c` is the user's own."""
    if file in ("<string>", "<stdin>"):
        return True
    return not file.startswith("<") and not file.startswith(_OWN) and not any(mark in file for mark in _LIBRARY_MARKS)


def is_torch_file(file: str) -> bool:
    return "/torch/" in file and not is_user_file(file)


def user_frames(stack: Stack) -> Stack:
    """The user's frames, innermost first. Where a job runs wholly from installed packages, the frames outside torch and Python."""
    own = tuple(frame for frame in stack if is_user_file(frame.file))
    if own:
        return own
    return tuple(frame for frame in stack if "-packages/" in frame.file and not is_torch_file(frame.file))


def user_frame(stack: Stack) -> Frame | None:
    """The innermost of the user's frames."""
    frames = user_frames(stack)
    return frames[0] if frames else None


def find_tracebacks(text: str, time_ns: int) -> list[Raised]:
    """Every whole traceback in a text, in order."""
    found = []
    for block in text.split(_HEAD)[1:]:
        raised = _read_block(block, time_ns)
        if raised is not None:
            found.append(raised)
    return found


def last_exception(text: str) -> str:
    """The message of an uncaught C++ exception, as the runtime prints it before it aborts; empty if there is none."""
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
