"""The file formats, one module each with its `FORMAT`. They are found by listing this folder: to add one, add its file.

Begin with `npy`, the smallest. `rankwise.offline.format` says what a format is. Several formats share the reading and writing of texts,
tables and arrays in `text_lines`, `table_reading`, `table_writing` and `array_writing` beside it.
"""

from __future__ import annotations

from pathlib import Path


def names() -> list[str]:
    """The names of all formats; imports none of them."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
