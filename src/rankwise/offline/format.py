"""What a file format of `predict` is (a reader and a writer), and which format belongs to a path."""

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
    """A column of whole numbers has a fraction in a later row, so the rows before it were given in the wrong type."""

    def __init__(self, name: str, first_row: int) -> None:
        super().__init__(name, first_row)
        self.name, self.first_row = name, first_row


class Source:
    """The rows of an input. Readers of formats and datasets are its subclasses."""

    total: int | None = None  # number of rows, unless counting them would mean reading everything
    identity: dict[str, Any]  # tells this input from others
    is_recognisable = True  # whether the identity also changes when the input does; if not, equal identities prove nothing
    is_one_shot = False  # whether it may be readable only once, so that nothing is tried on it first

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        """Batches of `size` rows from `first_row` on. `position` is that of the batch before, if the reader gives positions."""
        raise NotImplementedError

    def take_for_fractional(self, names: Iterable[str]) -> None:
        """Make floating point of whole numbers in these columns from now on, as a LateFraction asks."""


Parts = Callable[[], Iterable[Results]]  # gives the results of all batches, in order; may be called again


@dataclass(frozen=True)
class Format:
    """One kind of file, or the folder."""

    suffixes: tuple[str, ...]  # "" is a folder
    read: Callable[[Place, Selection], Source]
    write: Callable[[Parts, int, Path], None]  # the results, the number of the input's rows, and where to write them
    without_columns: str = ""  # what an input of this format is, if it has no columns to choose from
    keeps_columns: bool = True  # whether an output can hold columns of the input


def format_to_read(path: Place) -> Format:
    """The format for the path's suffix; raises UsageError if none reads it. A folder is read as a folder, whatever its name is."""
    if path.is_dir():
        return _by_suffix()[""]
    return _format_of(path, "reader", path.suffix.lower() or "no suffix")


def format_to_write(path: Place) -> Format:
    """The format for the path's suffix; a path without one is a folder."""
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
