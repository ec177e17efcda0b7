"""JSON Lines and CSV."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.predict.parts import Results
from rankwise.predict.sinks.sink import first_columns
from rankwise.predict.workspace import PredictError

Parts = Callable[[], Iterable[Results]]


def write_json_lines(parts: Parts, total: int, path: Path) -> None:
    """One object per row; a number that JSON cannot say (NaN, infinity) is null."""
    with path.open("w", encoding="utf-8") as file:
        for row in _rows(parts()):
            try:
                text = json.dumps(row, ensure_ascii=False, allow_nan=False)
            except ValueError:
                text = json.dumps(_sayable(row), ensure_ascii=False)
            file.write(text + "\n")


def write_csv(parts: Parts, total: int, path: Path) -> None:
    """One line per row; a vector takes a field for each of its numbers, anything deeper is written as JSON."""
    columns = first_columns(parts())
    header = ["row", *(name for key, column in columns.items() for name in _field_names(key, column))]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", lineterminator="\n")
        writer.writerow(header)
        for row in _rows(parts()):
            fields = [field for key, value in row.items() for field in _fields(value, columns.get(key))]
            if len(fields) != len(header):
                raise PredictError("RW834", f"row {row['row']} has {len(fields)} output fields, those before it {len(header)}")
            writer.writerow(fields)


def _rows(parts: Iterable[Results]) -> Iterator[dict[str, Any]]:
    for results in parts:
        columns = {name: column.tolist() if isinstance(column, np.ndarray) else column for name, column in results.columns.items()}
        for i, row in enumerate(results.rows.tolist()):
            yield {"row": row, **{name: _plain(column[i]) for name, column in columns.items()}}


def _field_names(name: str, column: Any) -> list[str]:
    if isinstance(column, np.ndarray) and column.ndim == 2:
        return [f"{name}_{i}" for i in range(column.shape[1])]
    return [name]


def _fields(value: Any, column: Any) -> list[Any]:
    if isinstance(column, np.ndarray) and column.ndim == 2 and isinstance(value, list):
        return value
    return [json.dumps(value) if isinstance(value, (list, dict)) else value]


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, complex) else value


def _sayable(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [_sayable(item) for item in value]
    return {key: _sayable(item) for key, item in value.items()} if isinstance(value, dict) else value
