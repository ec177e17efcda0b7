"""Any dataset: map-style (`len` and `[i]`) or iterable. A sample is a row: an array, a tuple of them, or a dictionary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from rankwise.errors import UsageError
from rankwise.predict.batches import Batch, Selection, as_column, split


class DatasetSource:
    """Samples of a dataset. Whether it is the same one when a job is resumed, only its length and type can tell."""

    def __init__(self, dataset: Any, selection: Selection) -> None:
        self._dataset, self._selection = dataset, selection
        self._is_map = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if not self._is_map and not isinstance(dataset, Iterable):
            raise UsageError(f"a {type(dataset).__name__} is neither a path nor a dataset")
        self.total: int | None = len(dataset) if self._is_map else None
        self.identity = {"dataset": type(dataset).__qualname__, "length": self.total}

    @property
    def is_one_shot(self) -> bool:
        """A generator: it can be read once, so nothing can be tried on it first."""
        return not self._is_map and iter(self._dataset) is self._dataset

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        samples = self._samples(first_row)
        while held := list(islice(samples, size)):
            yield self._batch(held, first_row)
            first_row += len(held)

    def _batch(self, samples: list[tuple[Any, str]], first_row: int) -> Batch:
        broken = {i: why for i, (_, why) in enumerate(samples) if why}
        good = next((sample for sample, why in samples if not why), None)
        rows = [_named(good if why else sample) for sample, why in samples]
        columns = {name: _column([row[name] for row in rows]) for name in rows[0]}
        columns, kept = split(columns, self._selection.of(list(columns), "the dataset"))
        return Batch(first_row, columns, len(samples), broken, kept)

    def _samples(self, first_row: int) -> Iterator[tuple[Any, str]]:
        """Each sample, or why it could not be had: one that raises is one failed row."""
        if not self._is_map:
            yield from ((sample, "") for sample in islice(iter(self._dataset), first_row, None))
            return
        for i in range(first_row, len(self._dataset)):
            try:
                yield self._dataset[i], ""
            except Exception as error:
                yield None, f"{type(error).__name__}: {error}"[:2000]


def _named(sample: Any) -> dict[str, Any]:
    """A sample's parts by name: a dictionary's keys, a tuple's positions."""
    if isinstance(sample, dict):
        return {str(name): value for name, value in sample.items()}
    return {str(i): value for i, value in enumerate(sample)} if isinstance(sample, (tuple, list)) else {"0": sample}


def _column(values: list[Any]) -> Any:
    arrays = [_array(value) for value in values]
    if all(isinstance(array, np.ndarray) for array in arrays) and len({(array.shape, array.dtype) for array in arrays}) == 1:
        return np.stack(arrays)
    return as_column(values)


def _array(value: Any) -> Any:
    """A tensor's numpy view, without importing torch: whoever has a tensor has imported it."""
    if hasattr(value, "detach") and hasattr(value, "numpy"):
        return value.detach().cpu().numpy()
    return value
