"""Parquet and Arrow files: every kind of column, all rows, and little of them at once."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from rankwise.errors import UsageError
from rankwise.offline import table_reading
from rankwise.offline.row_batches import Batch, Selection, taken
from rankwise.offline.source import open_source

NOON = datetime.datetime(2024, 1, 1, 12)


def written(path: Path, table: pa.Table, rows: int = 3) -> Path:
    """In groups, or record batches, of so many rows."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows)
    return path


def batches(path: Path, selection: Selection, size: int = 4, first_row: int = 0) -> list[Batch]:
    return list(open_source(path, selection).batches(size, first_row))


DICTIONARY = pa.array(["a", "b", None, "c", "a"] * 2).dictionary_encode()
KEPT = {
    "timestamps": (pa.array([NOON, None] * 5, pa.timestamp("us", "UTC")), None),
    "nanoseconds": (pa.array([1, None] * 5, pa.timestamp("ns")), None),
    "decimals": (pa.array([Decimal("1.50"), None] * 5, pa.decimal128(9, 2)), None),
    "bytes": (pa.array([b"a\0", b""] * 5), None),
    "32 bits with nulls": (pa.array([1, None, 3, 4, 5] * 2, pa.int32()), None),
    "structs": (pa.array([{"a": 1}, None] * 5), None),
    "empty lists": (pa.array([[]] * 10, pa.list_(pa.string())), None),
    "dictionaries": (DICTIONARY, pa.string()),
    "lists of dictionaries": (pa.ListArray.from_arrays(pa.array(range(11), pa.int32()), DICTIONARY), pa.list_(pa.string())),
    "large strings": (pa.array(["a", "b"] * 5, pa.large_string()), None),
    "nothing": (pa.nulls(10), None),
}


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize(("column", "kind"), KEPT.values(), ids=KEPT)
def test_what_is_kept_has_the_type_of_the_input(tmp_path: Path, suffix: str, column: pa.Array, kind: Any) -> None:
    path = written(tmp_path / f"x.{suffix}", pa.table({"x": np.arange(10.0), "k": column}))
    found = batches(path, Selection(("x",), ("k",)))

    whole = pa.concat_arrays([batch.kept["k"] for batch in found])
    assert [batch.length for batch in found] == [4, 4, 2]
    assert whole.type == (kind or column.type)
    assert whole.equals(column.cast(kind) if kind else column)
    assert taken(found[0].kept, [1, 3])["k"].equals(whole.take([1, 3]))


LONG = "longer than a view holds itself"
LAYOUTS = [
    pc.run_end_encode(pa.array([1, 1, 2, 2])),
    pa.array(["a", LONG, "c", "d"], pa.string_view()),
    pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 1], pa.uint32()), pa.array(["a", LONG], pa.string_view())),  # as polars writes
    pa.array([["a"], [LONG, None], None, []], pa.list_(pa.string_view())),
    pa.array([["a"], [LONG], None, ["d"]], pa.list_(pa.string_view(), 1)),
    pa.array(
        [{"t": "a", "b": [b"x"]}, {"t": LONG}, {}, None], pa.struct([("t", pa.string_view()), ("b", pa.large_list(pa.binary_view()))])
    ),
    pa.array([[("k", "a")], [("k", LONG)], None, []], pa.map_(pa.string(), pa.string_view())),
    pa.array([[1], [2, 3], None, []], pa.list_view(pa.int32())),
    pa.array([["a"], [LONG], None, []], pa.list_view(pa.string_view())),
]


@pytest.mark.parametrize("column", LAYOUTS, ids=lambda column: str(column.type).replace("\n", ""))
def test_rows_can_be_picked_from_whatever_layout(tmp_path: Path, column: pa.Array) -> None:
    path = written(tmp_path / "x.arrow", pa.table({"x": np.arange(4.0), "k": column}))
    (batch,) = batches(path, Selection(("x",), ("k",)))

    assert taken(batch.kept, [1, 3])["k"].to_pylist() == [column.to_pylist()[1], column.to_pylist()[3]]


FOR_MODEL = {
    "empty lists of texts": (pa.array([[]] * 10, pa.list_(pa.string())), [[]] * 10),
    "lists of empty lists": (pa.array([[[]]] * 10, pa.list_(pa.list_(pa.string()))), [[[]]] * 10),
    "empty lists of numbers": (pa.array([[]] * 10, pa.list_(pa.float32())), np.zeros((10, 0))),
    "lists of one length": (pa.array([[1, 2]] * 10, pa.list_(pa.int16(), 2)), np.array([[1, 2]] * 10)),
    "some missing": (pa.array([1, None] * 5), [1, None] * 5),
    "decimals": (pa.array([Decimal("1.50")] * 10), np.full(10, 1.5)),
    "texts of a dictionary": (pa.array(["a", "b"] * 5).dictionary_encode(), ["a", "b"] * 5),
    "numbers of a dictionary": (pa.array([1.5, 2.5] * 5).dictionary_encode(), np.array([1.5, 2.5] * 5)),
    "large texts": (pa.array(["a"] * 10, pa.large_string()), ["a"] * 10),
    "structs": (pa.array([{"a": 1}] * 10), [{"a": 1}] * 10),
}


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize(("column", "wanted"), FOR_MODEL.values(), ids=FOR_MODEL)
def test_what_the_model_gets(tmp_path: Path, suffix: str, column: pa.Array, wanted: Any) -> None:
    path = written(tmp_path / f"x.{suffix}", pa.table({"k": column, "x": np.arange(10.0)}), 10)
    (batch,) = batches(path, Selection(("k", "x")), 100)

    assert batch.length == 10 and len(batch.columns["x"]) == 10
    assert type(batch.columns["k"]) is type(wanted)
    np.testing.assert_array_equal(batch.columns["k"], wanted)


def test_tensors_of_one_shape_keep_it(tmp_path: Path) -> None:
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24.0, dtype=np.float32).reshape(4, 2, 3))
    table = pa.table({"x": tensors, "gaps": tensors.take(pa.array([0, None, 2, 3]))})
    (batch,) = batches(written(tmp_path / "x.parquet", table), Selection())

    assert batch.columns["x"].shape == (4, 2, 3)
    assert [None if row is None else row.tolist() for row in batch.columns["gaps"]] == [
        None if i == 1 else row for i, row in enumerate(batch.columns["x"].tolist())
    ]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("column", [pa.array([[1.0]] * 9 + [[1.0, 2.0]]), pa.array([1] * 9 + [None])])
def test_a_row_that_makes_a_list_of_its_batch_leaves_the_others_alone(tmp_path: Path, suffix: str, column: pa.Array) -> None:
    path = written(tmp_path / f"x.{suffix}", pa.table({"x": column}), 10)
    whole = batches(path, Selection())

    assert [isinstance(batch.columns["x"], np.ndarray) for batch in whole] == [True, True, False]
    assert [type(batch.columns["x"]) for batch in batches(path, Selection(), 4, 8)] == [list]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize(("columns", "keep"), [(("s",), ()), (("x",), ("s",)), (("l", "x"), ("d",)), (("x",), ())])
def test_a_text_that_is_not_utf8_is_one_failed_row(tmp_path: Path, suffix: str, columns: tuple[str, ...], keep: tuple[str, ...]) -> None:
    texts = pc.cast(pa.array([b"a", b"M\xfcller", b"c"]), pa.string(), safe=False)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), texts)
    table = pa.table({"s": texts, "l": lists, "d": texts.dictionary_encode(), "x": [1, 2, 3]})
    (batch,) = batches(written(tmp_path / f"x.{suffix}", table), Selection(columns, keep))

    assert list(batch.broken) == ([] if columns == ("x",) and not keep else [1])
    assert taken(batch.columns | batch.kept, [2])[columns[0]] in (["c"], [["c"]], np.array([3]))


def test_a_column_may_be_for_the_model_and_kept(tmp_path: Path) -> None:
    (batch,) = batches(written(tmp_path / "x.parquet", pa.table({"x": [1, 2]})), Selection(("x",), ("x",)))

    assert isinstance(batch.columns["x"], np.ndarray) and batch.kept["x"].equals(pa.array([1, 2]))


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.date32(), pa.list_(pa.timestamp("s")), pa.dictionary(pa.int8(), pa.date32())])
def test_times_are_nothing_for_a_model(tmp_path: Path, kind: pa.DataType) -> None:
    path = written(tmp_path / "x.arrow", pa.table({"x": [1.5], "when": pa.nulls(1, kind)}))

    with pytest.raises(UsageError, match="'when'") as caught:
        open_source(path, Selection())

    assert "--keep when" in caught.value.finding.next[0]
    assert batches(path, Selection((), ("when",)))[0].kept["when"].null_count == 1


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_names_that_are_there_twice(tmp_path: Path, suffix: str) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["x", "y", "y"])
    path = written(tmp_path / f"x.{suffix}", table)

    assert batches(path, Selection(("x",)))[0].columns["x"].tolist() == [1]
    with pytest.raises(UsageError, match="2 columns 'y'"):
        open_source(path, Selection(("y",)))


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("count", [0, 20])
def test_the_number_of_rows_is_known_beforehand(tmp_path: Path, suffix: str, count: int) -> None:
    path = written(tmp_path / f"x.{suffix}", pa.table({"x": np.arange(float(count))}))

    assert open_source(path, Selection()).total == count


@pytest.mark.parametrize("first_row", [0, 1, 3, 8, 9, 19, 20])
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_large_rows_from_any_row_on(tmp_path: Path, suffix: str, first_row: int) -> None:
    """Pieces of one row, because a row is larger than a piece should be."""
    size = 20_000_000 if first_row == 3 else 1000
    table = pa.table({"x": [bytes(size)] * 5 + [b""] * 15, "i": np.arange(20)})
    found = batches(written(tmp_path / f"x.{suffix}", table, 5), Selection(("x",), ("i",)), 3, first_row)

    assert [i for batch in found for i in batch.kept["i"].to_pylist()] == list(range(first_row, 20))


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_file_is_read_a_few_megabytes_at_a_time(tmp_path: Path, suffix: str) -> None:
    rows = np.random.default_rng(0).standard_normal((96, 1 << 17)).astype(np.float32)  # half a megabyte each, 48 in all
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(rows.reshape(-1), 1 << 17), "other": pa.array([bytes(1 << 20)] * 96)})
    path = written(tmp_path / f"x.{suffix}", table.combine_chunks(), 96 if suffix == "arrow" else 24)
    source = open_source(path, Selection(("x",)))
    del table
    before = pa.total_allocated_bytes()

    peaks = [pa.total_allocated_bytes() - before for _ in source.batches(8)]

    assert len(peaks) == 12 and max(peaks) < 40 << 20


def test_pieces_are_joined_once_for_each_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a stream has them that is written row by row: joining costs as much as there are pieces."""
    path = written(tmp_path / "x.arrow", pa.table({"x": np.arange(90.0)}), 1)
    joined: list[int] = []
    real = pa.concat_tables
    monkeypatch.setattr(table_reading.pa, "concat_tables", lambda tables: (joined.append(len(tables)), real(tables))[1])

    found = batches(path, Selection(), 40)

    assert np.concatenate([batch.columns["x"] for batch in found]).tolist() == list(range(90))
    assert joined == [40, 40, 10]
