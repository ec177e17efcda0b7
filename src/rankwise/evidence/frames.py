"""Tells the user's own frames from those of Python and of installed packages."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from rankwise.evidence.records import Frame, Stack

_LIBRARY_MARKS = ("/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3", "rankwise/probe/")
_OWN = f"{Path(__file__).parents[1]}/"  # where it is installed in a way that none of the marks shows


@lru_cache(maxsize=4096)  # asked for every frame of every stack
def is_user_file(file: str) -> bool:
    """True for the user's own code; `<string>` counts, since `python -c` is the user's own."""
    if file in ("<string>", "<stdin>"):
        return True
    return not file.startswith("<") and not file.startswith(_OWN) and not any(mark in file for mark in _LIBRARY_MARKS)


def is_torch_file(file: str) -> bool:
    return "/torch/" in file and not is_user_file(file)


def user_frames(stack: Stack) -> Stack:
    """The user's frames, innermost first. Where a job runs wholly from installed packages, those that are not torch's or Python's."""
    own = tuple(frame for frame in stack if is_user_file(frame.file))
    if own:
        return own
    return tuple(frame for frame in stack if "-packages/" in frame.file and not is_torch_file(frame.file))


def user_frame(stack: Stack) -> Frame | None:
    """Where the user's own code is: the innermost of their frames."""
    frames = user_frames(stack)
    return frames[0] if frames else None
