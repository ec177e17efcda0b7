"""A file format of `predict` (a reader and a writer), and which format a path has."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rankwise.errors import UsageError
from rankwise.offline import formats
from rankwise.offline.addresses import Place
from rankwise.offline.parts import Results
from rankwise.offline.row_batches import Batch, Selection


class LateFraction(Exception):
    """A column that was whole numbers so far has a fraction: rows read before were given with a type that is not the column's."""

    def __init__(self, name: str, first_row: int) -> None:
        super().__init__(name, first_row)
        self.name, self.first_row = name, first_row


class Source:
    """Rows of an input."""

    total: int | None = None  # where counting would not mean reading everything
    identity: dict[str, Any]  # what tells this input from another one
    is_recognisable = True  # whether it also tells it from itself after a change; if not, equal identities prove nothing
    is_one_shot = False  # it may be one that can be read only once, so nothing is tried on it first

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        """Batches of `size` rows from `first_row` on; `position` is what an earlier batch said, where the reader gave one."""
        raise NotImplementedError

    def take_for_fractional(self, names: Iterable[str]) -> None:
        """Whole numbers of these columns are floating point from now on: what a LateFraction asks for."""


Parts = Callable[[], Iterable[Results]]  # the results of all batches, in order, as often as they are wanted


@dataclass(frozen=True)
class Format:
    """One kind of file, or of folder."""

    suffixes: tuple[str, ...]  # "" is a folder
    read: Callable[[Place, Selection], Source]
    write: Callable[[Parts, int, Path], None]  # the results, the number of the input's rows, and where to write them
    without_columns: str = ""  # what an input of this format is, where it has no columns to choose from
    keeps_columns: bool = True  # whether there is room in the output for columns of the input


def format_to_read(path: Place) -> Format:
    """The format by the path's suffix; UsageError for one that nothing reads. A folder is a folder whatever its name."""
    if path.is_dir():
        return _by_suffix()[""]
    return _format_of(path, "reader", path.suffix.lower() or "no suffix")


def format_to_write(path: Place) -> Format:
    """The format by the path's suffix; a path without one is a folder."""
    return _format_of(path, "writer", path.suffix.lower())


def _format_of(path: Place, what: str, suffix: str) -> Format:
    if suffix not in _by_suffix():
        known = ", ".join(filter(None, _by_suffix()))
        raise UsageError(f"no {what} for {path.name}", why=f"known are {known}, and folders")
    return _by_suffix()[suffix]


@cache
def _by_suffix() -> dict[str, Format]:
    found: list[Format] = [importlib.import_module(f"{formats.__name__}.{name}").FORMAT for name in formats.names()]
    return {suffix: each for each in found for suffix in each.suffixes}
