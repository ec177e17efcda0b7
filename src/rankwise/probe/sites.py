"""Finds the user's lines on the current stack, and gives each distinct place a number."""

import os
import sysconfig
from types import CodeType, FrameType
from typing import Any

from . import journal

_LIBRARY, _PACKAGE, _USER = 0, 1, 2
_MAX_FRAMES = 8

_here = os.path.dirname(os.path.abspath(__file__))
_stdlib = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), os.path.dirname(os.__file__)})
_kinds: dict[CodeType, int] = {}
_numbers: dict[tuple[Any, ...], int] = {}


def forget() -> None:
    """Number afresh, in a journal that knows none of them."""
    _numbers.clear()


def number_of_caller(frame: FrameType | None) -> int:
    """The number of the place the user called from; new places are written to the journal once."""
    key: list[Any] = []
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(code)
        if kind is None:
            kind = _kinds[code] = _kind_of(code.co_filename)
        if kind:
            key.append(code)
            key.append(frame.f_lineno)
            if len(key) == 2 * _MAX_FRAMES:
                break
        frame = frame.f_back
    place = tuple(key)
    number = _numbers.get(place)
    if number is None:
        number = _numbers[place] = len(_numbers) + 1
        journal.write("site", i=number, frames=[frame_of(place[i], place[i + 1]) for i in range(0, len(place), 2)])
    return number


def stack_of(frame: FrameType | None) -> list[list[Any]]:
    """All frames from here outwards, innermost first, as [file, line, function]."""
    frames: list[list[Any]] = []
    while frame is not None and len(frames) < 60:
        frames.append([frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name])
        frame = frame.f_back
    return [entry for entry in frames if not entry[0].startswith(_here)]


def frame_of(code: CodeType, line: int) -> list[Any]:
    name = code.co_filename
    return [name if name.startswith("<") else os.path.abspath(name), line, code.co_name]


def _kind_of(filename: str) -> int:
    if filename.startswith(("<frozen", _here)):
        return _LIBRARY
    path = os.path.abspath(filename)
    if "site-packages" in path or "dist-packages" in path:
        return _LIBRARY if f"{os.sep}torch{os.sep}" in path else _PACKAGE
    return _LIBRARY if path.startswith(_stdlib) else _USER
