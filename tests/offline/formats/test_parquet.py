"""Parquet: how much of a file is read at once, and how values are stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rankwise.offline.output import write_output
from rankwise.offline.parts import Results
from rankwise.offline.row_batches import Selection
from rankwise.offline.source import open_source
from tests.offline.test_table_reading import written


def test_a_heavy_column_that_nobody_wants_does_not_make_pieces_small(tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(100.0), "image": [np.random.default_rng(i).bytes(300_000) for i in range(100)]})
    source = open_source(written(tmp_path / "x.parquet", table, 100), Selection(("x",)))

    assert len(list(source._tables(0, 100))) == 1  # type: ignore[attr-defined]


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


def test_a_list_of_distinct_values_is_kept_only_for_what_comes_again(tmp_path: Path) -> None:
    """For numbers that do not, it would take a third more room and most of the time of writing."""
    numbers = np.random.default_rng(0).permutation(5000)
    texts = [["cat", "dog"][i % 2] for i in range(5000)]
    columns = {"score": numbers / 7, "id": numbers, "label": numbers % 3, "tags": [[text] for text in texts], "text": texts}

    write_output(tmp_path / "out.parquet", lambda: [Results(np.arange(5000), columns, length=5000)], 5000)

    group = pq.read_metadata(tmp_path / "out.parquet").row_group(0)
    stored = {group.column(i).path_in_schema: group.column(i).has_dictionary_page for i in range(group.num_columns)}
    assert stored == {"row": False, "score": False, "id": False, "label": True, "tags.list.element": True, "text": True}
