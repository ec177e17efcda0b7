"""A line of a Python stack."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Frame:
    """One line of a Python stack."""

    file: str
    line: int
    function: str


Stack = tuple[Frame, ...]  # innermost frame first
