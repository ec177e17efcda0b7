"""The file formats, one module each with its `FORMAT`. They are found by listing this folder: to add one, add its file."""

from __future__ import annotations

from pathlib import Path


def names() -> list[str]:
    """The names of all formats; imports none of them."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
