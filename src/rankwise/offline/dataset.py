"""Any dataset: map-style (`len` and `[i]`) or iterable. A sample is a row: an array, a tuple of them, or a dictionary."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np

from rankwise.errors import UnreadableInput, UsageError
from rankwise.offline.batches import Batch, Chosen, Column, Row, Selection, as_column, of_rows
from rankwise.offline.values import NUMBERS, as_array, by_text, is_tensor, own

_SAMPLE = 16  # samples to look at before saying that none has a column


class DatasetSource:
    """Samples of a dataset. An unfinished job of it is resumed by type, length and first rows; whether others changed, nothing can tell."""

    is_recognisable = False

    def __init__(self, dataset: Any, selection: Selection) -> None:
        _refuse_what_has_no_rows(dataset)
        self._dataset, self._selection = dataset, selection
        self._is_map = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and not _is_of_torch(dataset, "IterableDataset")
        if not self._is_map and not isinstance(dataset, Iterable):
            raise UsageError(f"a {type(dataset).__name__} is neither a path nor a dataset")
        self.total: int | None = _length(dataset) if self._is_map else None
        self.identity = {"dataset": type(dataset).__qualname__, "length": self.total}

    @property
    def is_one_shot(self) -> bool:
        """A generator: it can be read once, so nothing can be tried on it first."""
        return not self._is_map and iter(self._dataset) is self._dataset

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        rows = self._rows(0)
        looked_at, chosen = self._choose(rows)
        rows = self._rows(first_row) if self._is_map and first_row else islice(chain(looked_at, rows), first_row, None)
        while held := list(islice(rows, size)):
            chosen = chosen or self._chosen_from(held)
            batch = of_rows(held, first_row, chosen or ([], []))
            yield replace(batch, kept={name: _as_kept(values) for name, values in batch.kept.items()})
            first_row += len(held)

    def _choose(self, rows: Iterator[Row]) -> tuple[list[Row], Chosen | None]:
        """As many of the first rows as it takes to see all names that are wanted, and the columns; None where no sample could be had."""
        looked_at: list[Row] = []
        for row in islice(rows, _SAMPLE):
            looked_at.append(row)
            if row.values and all(any(name in one.values for one in looked_at) for name in self._named):
                break
        return looked_at, self._chosen_from(looked_at) or self._chosen_by_name

    def _chosen_from(self, rows: list[Row]) -> Chosen | None:
        seen = dict.fromkeys(name for row in rows for name in row.values)
        if not seen:
            return None
        first = next(row.values for row in rows if row.values)
        return self._selection.of_loose(list(first), list(seen), "the dataset")

    @property
    def _chosen_by_name(self) -> Chosen | None:
        return (list(self._selection.columns), list(self._selection.keep)) if self._selection.columns else None

    @property
    def _named(self) -> tuple[str, ...]:
        return (*self._selection.columns, *self._selection.keep)

    def _rows(self, first_row: int) -> Iterator[Row]:
        return self._of_map(first_row) if self._is_map else self._of_iterable()

    def _of_map(self, first_row: int) -> Iterator[Row]:
        """A sample that raises is one failed row."""
        for i in range(first_row, len(self._dataset)):
            try:
                sample = self._dataset[i]
            except Exception as error:
                yield Row(why=f"{type(error).__name__}: {error}"[:2000])
            else:
                yield _row(sample)

    def _of_iterable(self) -> Iterator[Row]:
        """An iterator that raises has no next sample: that is the end."""
        count = 0
        try:
            for sample in self._dataset:
                yield _row(sample)
                count += 1
        except Exception as error:
            why = f"{type(error).__name__}: {str(error)[:300]}"
            steps = ("a map-style dataset (len and [i]) would lose only the sample that fails",)
            raise UnreadableInput(f"the dataset ended with an exception at row {count:,}", why=why, next=steps) from error


def _refuse_what_has_no_rows(dataset: Any) -> None:
    if _is_of_torch(dataset, "DataLoader"):
        raise UsageError("a DataLoader gives batches, where single rows are wanted", next=("pass loader.dataset",))
    if hasattr(dataset, "keys") or hasattr(dataset, "itercolumns") or isinstance(dataset, (bytes, bytearray)):
        steps = ("pass a list with one sample per row, or write the table to a .parquet file",)
        raise UsageError(f"a {type(dataset).__name__} has no rows that go by numbers", next=steps)


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except Exception as error:  # whatever a dataset raises
        raise UsageError(f"a {type(dataset).__name__} without a length is not a dataset", why=f"{type(error).__name__}: {error}") from error


def _is_of_torch(dataset: Any, name: str) -> bool:
    """Without importing torch: a caller that has such an object has imported it."""
    module = sys.modules.get("torch.utils.data")
    return module is not None and isinstance(dataset, getattr(module, name))


def _row(sample: Any) -> Row:
    """A sample's parts by name: a dictionary's keys, a tuple's positions."""
    if isinstance(sample, dict):
        try:
            values = by_text(sample)
        except TypeError as error:
            return Row(why=str(error))
    else:
        values = {str(i): value for i, value in enumerate(sample)} if isinstance(sample, (tuple, list)) else {"0": sample}
    values = {name: own(value) for name, value in values.items()}  # many a dataset fills one buffer again and again
    return Row(values, values)


def _as_kept(values: list[Any]) -> Column:
    """Values as they stand: 5 beside 0.5 is still 5. Arrays of one kind stay arrays."""
    arrays = [as_array(value) if is_tensor(value) else value for value in values]
    kinds = {(array.shape, array.dtype) if isinstance(array, (np.ndarray, np.generic)) else None for array in arrays}
    if len(kinds) == 1 and None not in kinds and arrays[0].dtype.kind in NUMBERS:
        return as_column(arrays)
    return [array.tolist() if isinstance(array, (np.ndarray, np.generic)) else array for array in arrays]
