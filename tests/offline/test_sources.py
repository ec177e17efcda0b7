"""Readers: every format gives the same rows, in batches of one size, from any row on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankwise.errors import RankwiseError, UnreadableInput, UsageError
from rankwise.offline.batches import Batch, Selection
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


def test_a_bad_line_is_one_failed_row(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"x": [1, 2]}\nnot json\n{"y": 3}\n[4]\n{"x": [5, 6]}\n')

    (batch,) = open_source(path, Selection(("x",))).batches(10)

    assert sorted(batch.broken) == [1, 2, 3]
    assert "not JSON" in batch.broken[1] and "no 'x'" in batch.broken[2]
    np.testing.assert_array_equal(batch.columns["x"][[0, 4]], [[1, 2], [5, 6]])


def test_a_csv_field_that_is_no_number_is_one_failed_row(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b,name\n" + "1,2.5,u\n" * 150 + "1,x,u\n1,2\n2,3.5,v\n")

    (batch,) = open_source(path, Selection(("a", "b"), ("name",))).batches(1000)

    assert sorted(batch.broken) == [150, 151]
    assert batch.columns["a"].dtype == np.int64 and batch.columns["b"].dtype == np.float64
    assert batch.kept["name"][152] == "v"


def test_columns_of_many_kinds(tmp_path: Path) -> None:
    table = pa.table(
        {
            "flag": [True, False, True],
            "ragged": [[1], [1, 2], []],
            "deep": pa.array([[[1, 2], [3, 4]]] * 3),
            "empty": pa.array([1, None, 3]),
            "text": ["a", "b", "c"],
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")

    (batch,) = open_source(tmp_path / "x.parquet", Selection()).batches(10)

    assert batch.columns["flag"].tolist() == [True, False, True]
    assert batch.columns["ragged"] == [[1], [1, 2], []]
    assert batch.columns["deep"].shape == (3, 2, 2)
    assert batch.columns["empty"] == [1, None, 3]
    assert batch.columns["text"] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float16", "int16"]
)
def test_what_numpy_does_not_know_is_read_as_float32(tmp_path: Path, dtype: str) -> None:
    """All there is of a dtype, in rows of 256."""
    import torch
    from safetensors.torch import save_file

    kind = getattr(torch, dtype)
    bits = torch.arange(256, dtype=torch.uint8) if kind.itemsize == 1 else torch.arange(-(1 << 15), 1 << 15).to(torch.int16)
    x = bits.view(kind).reshape(-1, 64)
    save_file({"x": x}, tmp_path / "x.safetensors")

    batches = list(open_source(tmp_path / "x.safetensors", Selection()).batches(3))

    wanted = x if dtype in ("float16", "int16") else x.float()
    np.testing.assert_array_equal(np.concatenate([batch.columns["x"] for batch in batches]), wanted.numpy())


@pytest.mark.parametrize("array", [np.ones((3, 2), ">f4"), np.array([1, 2], ">i8")])
def test_an_array_in_another_order_of_bytes(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "x.npy", array)

    (batch,) = open_source(tmp_path / "x.npy", Selection()).batches(10)

    assert batch.columns["input"].dtype.isnative
    np.testing.assert_array_equal(batch.columns["input"], array)


def test_a_folder_is_another_when_a_file_in_it_changed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "b").symlink_to(tmp_path / "nowhere")
    before = open_source(tmp_path, Selection()).identity

    assert open_source(tmp_path, Selection()).identity == before
    os.utime(tmp_path / "a", ns=(1, 1))
    touched = open_source(tmp_path, Selection()).identity
    (tmp_path / "a").write_bytes(b"other")
    os.utime(tmp_path / "a", ns=(1, 1))

    assert len({str(one) for one in (before, touched, open_source(tmp_path, Selection()).identity)}) == 3


def test_a_file_name_that_is_no_text_is_one_failed_row(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/M\xfcller")).write_bytes(b"")
    (tmp_path / "a").write_bytes(b"")

    (batch,) = open_source(tmp_path, Selection()).batches(4)

    assert list(batch.broken.values()) == ["its name is not UTF-8"] and batch.length == 2


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
