"""Parts: what is read is what was written, of any kind, and a changed byte is seen."""

from __future__ import annotations

import datetime
import decimal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rankwise.offline.parts import NextPart, Results, is_whole, read_part, write_part
from rankwise.offline.row_batches import is_arrow

COLUMNS: dict[str, Any] = {
    "floats": np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4),
    "no width": np.zeros((3, 0), np.int16),
    "halves": np.ones((3, 2, 2), np.float16),
    "complex": np.full(3, 1 + 2j, np.complex64),
    "truth": np.array([True, False, True]),
    "texts": ["ü", "half a pair: \ud800", None],
    "objects": [{"a": [1, {"b": None}]}, 2**80, float("inf")],
    "arrays of any length": [np.arange(i, dtype=np.int32) for i in range(3)],
    "arrays and none": [np.ones(2, np.float32), None, np.float32(2.5)],
    "times": pa.array([datetime.datetime(2024, 1, 1), None, None], pa.timestamp("ns", "UTC")),
    "decimals": pa.array([decimal.Decimal("1.50"), None, None]),
    "bytes": pa.array([b"\0\xff", b"", None]),
    "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
    "nested": pa.array([[{"a": None}], [], None], pa.list_(pa.struct([("a", pa.date32())]))),
    "nothing": pa.nulls(3),
}


def same(one: Any, other: Any) -> bool:
    if is_arrow(one):
        return bool(one.type == other.type and one.equals(other))
    if isinstance(one, (np.ndarray, np.generic)):
        return one.dtype == other.dtype and one.shape == other.shape and bool(np.array_equal(one, other))
    return type(one) is type(other) and (all(map(same, one, other)) if isinstance(one, list) else one == other)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_is_read_back_as_it_was_written(tmp_path: Path, name: str) -> None:
    part = Results([0, 1, 2], {"first": np.arange(3), name: COLUMNS[name]}, [], 0, 3)

    write_part(tmp_path / "part", NextPart(part, part))
    (back,) = read_part(tmp_path / "part")

    assert same(back.columns[name][:3], COLUMNS[name]) and same(back.columns[name][3:], COLUMNS[name])
    assert [rows for rows, _ in back.batches] == [3, 3]


def test_columns_that_change_come_back_batch_by_batch(tmp_path: Path) -> None:
    """Types, names and number of the columns; and a batch of which no row worked."""
    columns = [{"a": np.zeros(2)}, {"a": np.zeros((2, 3), np.int8), "b": ["x", None]}, {}, {"b": ["y"]}]
    pieces = [Results(range(len(next(iter(each.values()), []))), each, [], i, 2) for i, each in enumerate(columns)]

    write_part(tmp_path / "part", NextPart(*pieces))
    back = list(read_part(tmp_path / "part"))

    assert [list(results.columns) for results in back] == [list(each) for each in columns]
    assert all(same(results.columns[name], each[name]) for results, each in zip(back, columns, strict=True) for name in each)
    assert [results.first_row for results in back] == [0, 1, 2, 3]


def test_what_is_known_of_the_rows_comes_back(tmp_path: Path) -> None:
    errors = [{"row": 6, "error": "E", "message": "\udcff"}]

    write_part(tmp_path / "part", NextPart(Results([5, 7], {"file": ["a", "b"]}, errors, 5, 3, "file")))
    (back,) = read_part(tmp_path / "part")

    assert (back.rows.tolist(), back.errors, back.first_row, back.length, back.file_column) == ([5, 7], errors, 5, 3, "file")


def test_a_changed_byte_is_seen(tmp_path: Path) -> None:
    facts = write_part(tmp_path / "part", NextPart(Results([0, 1, 2], COLUMNS, [], 0, 3)))
    assert is_whole(tmp_path / "part", facts["bytes"], facts["crc"])
    data = bytearray((tmp_path / "part").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "part").write_bytes(data)

    assert not is_whole(tmp_path / "part", facts["bytes"], facts["crc"])


def test_a_kept_text_is_written_where_nobody_else_has_loaded_pyarrow_whole(tmp_path: Path) -> None:
    write_part(tmp_path / "part", NextPart(Results([0], {"a": pa.array(["x"])}, [], 0, 1)))
    code = (
        "from pathlib import Path; from rankwise.offline.parts import read_part; from rankwise.offline.output import write_output;"
        f"write_output(Path({str(tmp_path / 'out.parquet')!r}), lambda: read_part(Path({str(tmp_path / 'part')!r})), 1)"
    )

    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
