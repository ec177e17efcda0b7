"""What only Arrow files can have wrong."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rankwise.errors import UnreadableInput
from rankwise.offline.row_batches import Selection
from rankwise.offline.source import batches_of, open_source

DAMAGED = {
    "texts": pa.array(["abc"] * 300),
    "bytes": pa.array([b"abc"] * 300),
    "lists": pa.array([[1.0, 2.0, 3.0]] * 300),
    "lists of texts": pa.array([["a", "b", "c"]] * 300),
}


@pytest.mark.parametrize("column", DAMAGED.values(), ids=DAMAGED)
def test_a_file_that_is_damaged_where_values_begin_is_a_finding(tmp_path: Path, column: pa.Array) -> None:
    path = tmp_path / "x.arrow"
    table = pa.table({"x": column})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    before, number, after = ((3 * n).to_bytes(4, "little") for n in (29, 30, 31))
    path.write_bytes(path.read_bytes().replace(before + number + after, before + b"\xff\xff\xff\x7f" + after))

    with pytest.raises(UnreadableInput, match="cannot be read from row 0 on"):
        list(batches_of(open_source(path, Selection()), 50))


def test_a_file_that_is_cut_short_while_it_is_read_is_a_finding(tmp_path: Path) -> None:
    """The system would end the process that looks at what is no longer there. Rows that were read before stay what they are."""
    path = tmp_path / "x.arrow"
    table = pa.table({"x": np.arange(40_000.0), "name": [f"name {n}" for n in range(40_000)]})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=10_000)
    batches = batches_of(open_source(path, Selection(columns=("x",), keep=("name",))), 10_000)
    first = next(batches)

    os.truncate(path, 1000)

    with pytest.raises(UnreadableInput, match="cannot be read from row 10,000 on"):
        list(batches)
    assert first.columns["x"].sum() == sum(range(10_000))
    assert first.kept["name"][9_999].as_py() == "name 9999"


@pytest.mark.parametrize("column", [pa.array(["a", "b"] * 500, pa.string_view()), pa.array([b"a"] * 1000), pa.nulls(1000, pa.int64())])
def test_rows_of_a_large_record_batch_come_in_pieces(tmp_path: Path, column: pa.Array, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankwise.offline.formats.arrow._PIECE_BYTES", 64)
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as sink, pa.ipc.new_file(sink, pa.schema([("x", column.type)])) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([column], ["x"]))

    read = [value for batch in open_source(tmp_path / "x.arrow", Selection()).batches(30, 7) for value in batch.columns["x"]]

    assert read == column.to_pylist()[7:]
