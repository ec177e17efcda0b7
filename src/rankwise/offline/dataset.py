"""Any dataset: map-style (`len` and `[i]`) or iterable. A sample is a row: an array, a tuple of them, or a dictionary."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice, tee
from typing import Any

import numpy as np

from rankwise.errors import UnreadableInput, UsageError
from rankwise.offline.format import Source
from rankwise.offline.row_batches import Batch, Column, Row, Selection, as_column, of_rows
from rankwise.offline.values import MASKED, NUMBERS, as_array, is_masked, is_tensor, own
from rankwise.pool.api.model import by_text

_SAMPLE = 16  # samples to look at before saying that none has a column


class DatasetSource(Source):
    """Samples of a dataset. An unfinished job is resumed if type, length and first rows are the same; other changes go unnoticed."""

    is_recognisable = False

    def __init__(self, dataset: Any, selection: Selection) -> None:
        _refuse_what_has_no_rows(dataset)
        self._dataset, self._selection = dataset, selection
        self._is_map = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and not _is_of_torch(dataset, "IterableDataset")
        if not self._is_map and not isinstance(dataset, Iterable):
            raise UsageError(f"a {type(dataset).__name__} is neither a path nor a dataset")
        self.total = _length(dataset) if self._is_map else None
        self.identity = {"dataset": type(dataset).__qualname__, "length": self.total}
        self.is_one_shot = not self._is_map  # a wrapper of a generator, or one that shuffles, may not begin at its first sample again
        self._iterator: Iterator[Any] | None = None
        self._parts: int | None = None  # of the first sample that is a tuple or a list
        self._head: list[Row] = []  # of a source that can be read only once: its first rows, so that they can be compared first

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        rows, looked_at = tee(self._rows(0))
        chosen = self._selection.of_first(islice(looked_at, _SAMPLE), "the dataset")
        del looked_at  # or it would keep all rows that are read
        rows = self._rows(first_row) if self._is_map and first_row else islice(rows, first_row, None)
        while held := list(islice(rows, size)):
            chosen = chosen or self._selection.of_first(held, "the dataset")
            batch = of_rows(held, first_row, chosen or ([], []))
            yield replace(batch, kept={name: _as_kept(values) for name, values in batch.kept.items()})
            first_row += len(held)

    def _rows(self, first_row: int) -> Iterator[Row]:
        return self._of_map(first_row) if self._is_map else self._of_iterable()

    def _of_map(self, first_row: int) -> Iterator[Row]:
        """Rows of a map-style dataset; a sample that raises is one failed row."""
        for i in range(first_row, len(self._dataset)):
            try:
                sample = self._dataset[i]
            except Exception as error:
                yield Row(why=f"{type(error).__name__}: {error}"[:2000])
            else:
                yield self._row(sample)

    def _of_iterable(self) -> Iterator[Row]:
        """Rows of an iterable. An iterator that raises cannot go on, so that is an error of the whole input."""
        yield from list(self._head)
        count = len(self._head)
        try:
            self._iterator = iter(self._dataset) if self._iterator is None else self._iterator
            for sample in self._iterator:
                row = self._row(sample)
                if count < _SAMPLE:
                    self._head.append(row)
                yield row
                count += 1
        except Exception as error:
            why = f"{type(error).__name__}: {str(error)[:300]}"
            steps = ("a map-style dataset (len and [i]) would lose only the sample that fails",)
            raise UnreadableInput(f"the dataset ended with an exception at row {count:,}", why=why, next=steps) from error

    def _row(self, sample: Any) -> Row:
        """A list of token ids looks like a sample with so many parts. Of a longer one the model would get only as many as the first has."""
        if isinstance(sample, (tuple, list)):
            self._parts = len(sample) if self._parts is None else self._parts
            if len(sample) > self._parts and not self._selection.columns:
                what = f"it has {len(sample)} parts, where the first sample has {self._parts}"
                return Row(why=f"{what}: a list that is one input is given as the only part of a tuple, (sample,)")
        return _row(sample)


_OF_TABLES = ("keys", "itercolumns", "iter_columns")  # of dictionaries and pandas, pyarrow, polars: [i] gives no row of these


def _refuse_what_has_no_rows(dataset: Any) -> None:
    name = type(dataset).__name__
    is_dataset = _is_of_torch(dataset, "Dataset")
    if _is_of_torch(dataset, "DataLoader") or (name.endswith("Loader") and hasattr(dataset, "dataset") and not is_dataset):  # timm's, ours
        raise UsageError(f"a {name} gives batches, where single rows are wanted", next=("pass loader.dataset",))
    if any(hasattr(dataset, name) for name in _OF_TABLES) or isinstance(dataset, (bytes, bytearray)):
        steps = ("pass a list with one sample per row, or write the table to a .parquet file",)
        raise UsageError(f"a {type(dataset).__name__} has no rows that go by numbers", next=steps)


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except Exception as error:  # a dataset may raise anything
        raise UsageError(f"a {type(dataset).__name__} without a length is not a dataset", why=f"{type(error).__name__}: {error}") from error


def _is_of_torch(dataset: Any, name: str) -> bool:
    """Whether it is of torch's class of that name. Does not import torch: a caller with such an object has done so."""
    module = sys.modules.get("torch.utils.data")
    return module is not None and isinstance(dataset, getattr(module, name))


def _row(sample: Any) -> Row:
    """A sample's parts by name: a dictionary's keys, a tuple's positions."""
    if isinstance(sample, Mapping):  # a tokenizer of transformers returns one that is not a dict
        try:
            values = by_text(sample)
        except TypeError as error:
            return Row(why=str(error))
    else:
        values = {str(i): value for i, value in enumerate(sample)} if isinstance(sample, (tuple, list)) else {"0": sample}
    if masked := next((name for name, value in values.items() if is_masked(value)), None):
        return Row(why=f"{masked!r}: {MASKED}")
    values = {name: own(value) for name, value in values.items()}  # many datasets fill one buffer again and again
    return Row(values, values)


def _as_kept(values: list[Any]) -> Column:
    """Values as they are: 5 beside 0.5 is still 5. Arrays of one kind stay arrays."""
    arrays = [as_array(value) if is_tensor(value) else value for value in values]
    kinds = {(array.shape, array.dtype) if isinstance(array, (np.ndarray, np.generic)) else None for array in arrays}
    if len(kinds) == 1 and None not in kinds and arrays[0].dtype.kind in NUMBERS:
        return as_column(arrays)
    return [array.tolist() if isinstance(array, (np.ndarray, np.generic)) else array for array in arrays]
