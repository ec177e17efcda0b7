"""What only Arrow files can have wrong."""

from __future__ import annotations

from pathlib import Path

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
