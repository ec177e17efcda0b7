"""JSON Lines: what is a row, and what costs only itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwise.errors import RankwiseError
from rankwise.offline import text_lines
from rankwise.offline.output import write_output
from rankwise.offline.parts import Results
from rankwise.offline.row_batches import Selection
from rankwise.offline.source import open_source
from tests.offline.formats.reading import NAME, good, read


def test_an_endless_line_of_json_is_one_failed_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_lines, "MAX_LINE", 1_000_000)
    batch = read(tmp_path / "x.jsonl", b'{"x": 1}\n{"y": "' + b"y" * 2_500_000 + b'", "x": 2}\n{"x": 3}\n')

    assert (list(batch.broken), good(batch)) == ([1], [1, 3])


def lines(*rows: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_json_lines_may_begin_with_a_byte_order_mark_and_end_with_crlf(tmp_path: Path) -> None:
    batch = read(tmp_path / "x.jsonl", b'\xef\xbb\xbf{"x": 1}\r\n\r\n{"x": 2}')

    assert (good(batch), batch.broken) == ([1, 2], {})


def test_a_column_may_be_missing_in_the_first_rows(tmp_path: Path) -> None:
    batch = read(tmp_path / "x.jsonl", lines({"name": "a"}, {"x": 1}, {"x": 2, "name": "c"}), NAME)

    assert list(batch.broken) == [0]
    assert batch.kept["name"] == ["a", None, "c"]


def test_a_column_that_no_row_has_is_a_finding(tmp_path: Path) -> None:
    with pytest.raises(RankwiseError, match="no column 'name'"):
        read(tmp_path / "x.jsonl", lines(*[{"x": 1}] * 1100), NAME)


def test_the_model_gets_the_columns_of_the_first_row_if_none_are_named(tmp_path: Path) -> None:
    batch = read(tmp_path / "x.jsonl", b"no\n" + lines({"x": 1}, {"x": 2, "more": 3}), Selection())

    assert (good(batch), list(batch.columns), list(batch.broken)) == ([1, 2], ["x"], [0])


JSON = {
    "not UTF-8": (b'{"x": 1, "name": "M\xfcller"}\n', "not UTF-8"),
    "half of a surrogate pair as bytes": (b'{"x": 1, "name": "\xed\xa0\x80"}\n', "not UTF-8"),
    "too deep": (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "not JSON"),
    "a number without end": (b'{"x": ' + b"1" * 5000 + b"}\n", "not JSON"),
    "an array": (b"[1]\n", "a JSON array"),
    "lists without end": (b'{"x": 1, "name": ' + b"[" * 400 + b"]" * 400 + b"}\n", "more than 250 lists"),
}


@pytest.mark.parametrize(("line", "why"), JSON.values(), ids=JSON)
def test_a_line_that_is_no_json_costs_only_itself(tmp_path: Path, line: bytes, why: str) -> None:
    batch = read(tmp_path / "x.jsonl", lines({"x": 1, "name": "a"}) + line + lines({"x": 2, "name": "c"}), NAME)

    assert list(batch.broken) == [1] and why in batch.broken[1]
    assert good(batch, "name") == ["a", "c"]


def test_half_of_a_surrogate_pair_is_a_text(tmp_path: Path) -> None:
    """As JSON can say it, and as all that is written escapes it."""
    batch = read(tmp_path / "x.jsonl", b'{"x": 1, "name": "\\ud800"}\n', NAME)

    assert (batch.broken, batch.kept["name"]) == ({}, ["\ud800"])


COLUMNS = {
    "floats stay float64": ([0.1, 16777217.0], np.float64),
    "whole ones stay whole": ([1, 2], np.int64),
    "both are floats": ([1, 0.5], np.float64),
    "vectors": ([[1, 0.5], [1, 2]], np.float64),
    "NaN and infinity": ([float("nan"), float("inf")], np.float64),
    "different lengths": ([[1], [1, 2]], None),
    "a missing one": ([1.5, None], None),
    "one that is text": ([1, "a"], None),
    "numbers beyond an array's": ([1.5, 10**400 // 3 % 10**60], None),
    "deep ones": ([json.loads("[" * 200 + "1" + "]" * 200)] * 2, None),
}


@pytest.mark.parametrize(("column", "dtype"), COLUMNS.values(), ids=COLUMNS)
def test_what_becomes_an_array(tmp_path: Path, column: list[Any], dtype: Any) -> None:
    found = read(tmp_path / "x.jsonl", lines(*({"x": value} for value in column))).columns["x"]

    assert getattr(found, "dtype", None) == dtype
    if dtype:
        np.testing.assert_array_equal(found, column)
    else:
        assert found == column


def test_what_is_kept_of_json_does_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    batch = read(tmp_path / "x.jsonl", lines({"x": 1, "name": 5}, {"x": 1, "name": 0.5}), NAME)

    assert list(map(repr, batch.kept["name"])) == ["5", "0.5"]


def test_a_bad_line_is_one_failed_row(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"x": [1, 2]}\nnot json\n{"y": 3}\n[4]\n{"x": [5, 6]}\n')

    (batch,) = open_source(path, Selection(("x",))).batches(10)

    assert sorted(batch.broken) == [1, 2, 3]
    assert "not JSON" in batch.broken[1] and "no 'x'" in batch.broken[2]
    np.testing.assert_array_equal(batch.columns["x"][[0, 4]], [[1, 2], [5, 6]])


def test_a_number_json_cannot_say_is_null(tmp_path: Path) -> None:
    parts = [Results([0], {"output": np.array([[np.nan, 1.0, np.inf]])}, [], 0, 1)]

    write_output(tmp_path / "out.jsonl", lambda: iter(parts), 1)

    assert json.loads((tmp_path / "out.jsonl").read_text())["output"] == [None, 1.0, None]


@pytest.mark.parametrize(
    ("fraction", "whole", "wanted"),
    [
        (0.5, 1, [1.0]),
        ([0.5, 2], [1, 0], [[1.0, 0.0]]),
        ([0.5], [1, 0], [[1.0, 0.0]]),  # of several lengths
        (["a", 0.5], ["b", 1], [["b", 1]]),
    ],
)
def test_a_whole_number_in_a_column_of_fractions_is_floating_point_whatever_stands_beside_it(
    tmp_path: Path, fraction: Any, whole: Any, wanted: Any
) -> None:
    content = lines(*[{"x": whole, "n": 1}] * 3, {"x": fraction, "n": 1}, {"x": None, "n": 1}, {"x": whole, "n": 1})
    (tmp_path / "x.jsonl").write_bytes(content)
    source = open_source(tmp_path / "x.jsonl", Selection(("x", "n")))

    for size in (1, 2, 10):
        columns = next(iter(source.batches(size))).columns
        assert json.dumps(np.asarray(columns["x"][:1], object).tolist()) == json.dumps(wanted)
        assert columns["n"].dtype.kind == "i"


def test_an_empty_list_makes_no_floating_point_of_lists_of_whole_numbers(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(lines({"x": []}, {"x": [2, 3]}, {"x": [4]}, {"x": []}, {"x": []}))
    source = open_source(tmp_path / "x.jsonl", Selection(("x",)))

    assert json.dumps(next(source.batches(3)).columns["x"]) == "[[], [2, 3], [4]]"
    assert len(list(source.batches(1))) == 5
