"""Readers: every format gives the same rows, in batches of one size, from any row on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rankwise.errors import RankwiseError, UnreadableInput, UsageError
from rankwise.offline.row_batches import Batch, Selection
from rankwise.offline.source import open_source
from tests.offline.inputs import KINDS, rows, write

COUNT = 101


def matrix(batch: Batch) -> np.ndarray:
    if "__file__" in batch.columns:
        return np.stack([np.load(path) for path in batch.columns["__file__"]])
    columns = [np.asarray(column, np.float32) for column in batch.columns.values()]
    return columns[0] if columns[0].ndim == 2 else np.stack(columns, axis=1)


def values(column: Any) -> list[Any]:
    """Of a column of any kind, as Python has them."""
    return column.to_pylist() if isinstance(column, pa.Array) else np.asarray(column).tolist() if isinstance(column, np.ndarray) else column


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 16, 37, 101, 500])
def test_batches_have_the_rows_of_the_input_in_order(tmp_path: Path, kind: str, size: int) -> None:
    path, chosen = write(tmp_path, kind, COUNT)
    batches = list(open_source(path, Selection(**chosen)).batches(size))

    assert [batch.length for batch in batches] == [size] * (COUNT // size) + [COUNT % size] * bool(COUNT % size)
    assert [batch.first_row for batch in batches] == list(range(0, COUNT, size))
    np.testing.assert_array_equal(np.concatenate([matrix(batch) for batch in batches]), rows(COUNT))
    ids = [name for batch in batches for name in values(batch.kept.get("id", []))]
    assert not ids or (ids[3], ids[4], len(ids)) == ('k"3,\n', "k4", COUNT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("done", [1, 3, 6])
def test_reading_can_go_on_behind_any_batch(tmp_path: Path, kind: str, done: int) -> None:
    path, chosen = write(tmp_path, kind, COUNT)
    source = open_source(path, Selection(**chosen))
    batches = list(source.batches(16))

    rest = list(source.batches(16, done * 16, batches[done - 1].position))
    without_position = list(source.batches(16, done * 16))

    for one, two, wanted in zip(rest, without_position, batches[done:], strict=True):
        assert one.first_row == two.first_row == wanted.first_row
        np.testing.assert_array_equal(matrix(one), matrix(wanted))
        np.testing.assert_array_equal(matrix(two), matrix(wanted))


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_an_input_without_rows_has_no_batches(tmp_path: Path, kind: str) -> None:
    path, chosen = write(tmp_path, kind, 0)

    assert list(open_source(path, Selection(**chosen)).batches(8)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_recognised(tmp_path: Path, kind: str) -> None:
    path, chosen = write(tmp_path, kind, 3)

    assert open_source(path, Selection(**chosen)).is_recognisable


def test_an_iterable_dataset_and_tuples() -> None:
    class Stream:
        def __iter__(self):  # type: ignore[no-untyped-def]
            return ((np.float32(i), i) for i in range(7))

    source = open_source(Stream(), Selection(("0",)))

    assert [batch.columns["0"].tolist() for batch in source.batches(4)] == [[0, 1, 2, 3], [4, 5, 6]]
    assert [batch.columns["0"].tolist() for batch in source.batches(4, 4)] == [[4, 5, 6]]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.parquet", b"no"), ("x.arrow", b"no"), ("x.npy", b"no"), ("x.npy", b"\x93NUMPY\x01\x00\xff\xff"), ("x.safetensors", b"no"),
        ("x.csv", b""), ("x.xlsx", b"PK"), ("scalar.npy", None),
        ("times.npy", None), ("objects.npy", None), ("gone.npy", None), ("empty", None),
    ],
)  # fmt: skip
def test_an_input_that_cannot_be_read_is_a_finding(tmp_path: Path, name: str, content: bytes | None) -> None:
    path = tmp_path / name
    if name == "scalar.npy":
        np.save(path, np.float32(1))
    elif name == "times.npy":
        np.save(path, np.zeros(3, "M8[s]"))
    elif name == "objects.npy":
        np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    elif name == "empty":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)

    with pytest.raises((UnreadableInput, UsageError)) as caught:
        list(open_source(path, Selection()).batches(4))

    assert isinstance(caught.value, RankwiseError)


def test_a_column_that_is_not_there_lists_those_that_are(tmp_path: Path) -> None:
    path, _ = write(tmp_path, "parquet", 3)

    with pytest.raises(UsageError, match="pixels") as caught:
        open_source(path, Selection(("pixels",)))

    assert "id, x" in caught.value.finding.why


def test_an_empty_path_is_not_the_folder_this_runs_in() -> None:
    with pytest.raises(UnreadableInput, match="is empty"):
        open_source("", Selection())
