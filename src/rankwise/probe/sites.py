"""Finds the user's lines on the current stack, and gives each distinct place a number."""

from __future__ import annotations

import itertools
import os
import sys

from . import journal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any

# A place has frames worth 24 at most: one of the user's counts 3, one of a package between it and torch counts 1.
_HIDDEN, _PACKAGE, _USER, _ROOM = 0, 1, 3, 24
_MAX_CODES = 20_000

_here = os.path.dirname(os.path.abspath(__file__))
_version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
_stdlib = (os.path.dirname(os.__file__) + os.sep, os.path.join(sys.base_exec_prefix, sys.platlibdir, _version) + os.sep)
# Keyed by id, because hashing a code object hashes all it holds; `_codes` holds the objects, so that no id is used again.
_kinds: dict[int, int] = {}
_codes: list[CodeType] = []
_numbers: dict[tuple[Any, ...], int] = {}
_next_number = itertools.count(1).__next__


def forget() -> None:
    """Forget all places, so that they are described again: for a new journal, or when too many are remembered."""
    _numbers.clear()
    _kinds.clear()
    _codes.clear()


def number_of_caller(frame: FrameType | None) -> int:
    """The number of the place the user called from; new places are written to the journal once."""
    place: list[int] = []
    add, kind_of, room, outer = place.append, _kinds.get, _ROOM, frame
    while outer is not None:
        code = id(outer.f_code)
        kind = kind_of(code)
        if kind is None:
            kind = _learn(outer.f_code)
        if kind:
            add(code)
            add(outer.f_lasti)  # cheaper than the line number
            room -= kind
            if room <= 0:
                break
        outer = outer.f_back
    return _numbers.get(tuple(place)) or _number_of_new(tuple(place), frame)


def _learn(code: CodeType) -> int:
    _codes.append(code)
    kind = _kinds[id(code)] = _kind_of(code.co_filename)
    return kind


def _number_of_new(place: tuple[int, ...], frame: FrameType | None) -> int:
    if len(_codes) > _MAX_CODES:  # a script that compiles new code at every call (exec)
        forget()
        return number_of_caller(frame)
    frames: list[tuple[str, int, str]] = []
    while frame is not None and 2 * len(frames) < len(place):
        if _kinds[id(frame.f_code)]:
            frames.append((_full_path(frame.f_code.co_filename), frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    known = _numbers.get(tuple(frames))  # the same lines reached from another instruction, or compiled again
    number = _numbers[place] = _numbers[tuple(frames)] = known or _next_number()
    if not known:
        journal.write("site", i=number, frames=frames)
    return number


def stack_of(frame: FrameType | None) -> list[list[Any]]:
    """All frames from here outwards, innermost first, as [file, line, function]."""
    frames: list[list[Any]] = []
    while frame is not None and len(frames) < 60:
        frames.append([frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name])
        frame = frame.f_back
    return [entry for entry in frames if not entry[0].startswith(_here)]


def _full_path(filename: str) -> str:
    return filename if filename.startswith("<") else os.path.abspath(filename)


def _kind_of(filename: str) -> int:
    if filename.startswith(("<frozen", _here)):
        return _HIDDEN
    path = _full_path(filename)
    if "site-packages" in path or "dist-packages" in path:
        return _HIDDEN if f"{os.sep}torch{os.sep}" in path else _PACKAGE
    return _HIDDEN if path.startswith(_stdlib) else _USER


def is_users(frame: FrameType) -> bool:
    """Whether this frame runs the user's own code."""
    kind = _kinds.get(id(frame.f_code))
    return (_learn(frame.f_code) if kind is None else kind) == _USER


def is_called_by_user(frame: FrameType | None) -> bool:
    """Whether the user's code made this call, directly or through another package, rather than torch for its own purposes."""
    while frame is not None and not is_users(frame):
        if f"{os.sep}torch{os.sep}" in frame.f_code.co_filename or f"{os.sep}triton{os.sep}" in frame.f_code.co_filename:
            return False
        frame = frame.f_back
    return frame is not None
