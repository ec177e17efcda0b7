"""Tables: whole batches in groups of some megabytes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankwise.offline import table_writing
from rankwise.offline.output import write_output
from rankwise.offline.parts import Results
from tests.offline.results import COUNT, FAILED, batches


def test_a_group_is_no_larger_than_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_writing, "_GROUP_BYTES", 10_000)
    texts = ["x" * (row % 3000) for row in range(500)]
    kept = pa.array(texts)
    parts = [Results(range(at, at + 5), {"text": texts[at : at + 5], "kept": kept[at : at + 5]}, [], at, 5) for at in range(0, 500, 5)]

    found = list(table_writing.tables_of(lambda: parts)[1])

    assert max(group.nbytes - group.slice(len(group) - 5).nbytes for group in found) < 10_000
    assert [row for group in found for row in group["row"].to_pylist()] == list(range(500))


def test_tables_are_read_by_pyarrow(tmp_path: Path) -> None:
    for suffix in (".parquet", ".arrow"):
        write_output(tmp_path / f"out{suffix}", lambda: iter(batches()), COUNT)
    tables = [pq.read_table(tmp_path / "out.parquet"), pa.ipc.open_file(tmp_path / "out.arrow").read_all()]

    for table in tables:
        assert table["row"].to_pylist() == [row for row in range(COUNT) if row not in FAILED]
        assert table["output"].to_pylist()[2] == [2.0, pytest.approx(2 / 3)]
        assert table["file"].to_pylist()[-1] == "f998"
