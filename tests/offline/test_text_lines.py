"""Lines of a bounded length, rows of plain values, and text that JSON can say."""

from __future__ import annotations

import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rankwise.offline import text_lines
from rankwise.offline.parts import Results
from rankwise.offline.text_lines import entries, json_text, lines_of, plain_rows


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_lines, "MAX_LINE", 4)


def lines(folder: Path, content: bytes, position: int = 0, stop: int | None = None) -> list[tuple[bytes | None, int]]:
    (folder / "x").write_bytes(content)
    return list(lines_of(folder / "x", position, stop))


def test_each_line_comes_with_its_end_and_the_byte_behind_it(tmp_path: Path) -> None:
    assert lines(tmp_path, b"a\n\nbc") == [(b"a\n", 2), (b"\n", 3), (b"bc", 5)]
    assert lines(tmp_path, b"a\n\nbc", position=2) == [(b"\n", 3), (b"bc", 5)]
    assert lines(tmp_path, b"") == []


def test_what_is_written_behind_the_end_is_not_looked_at(tmp_path: Path) -> None:
    assert lines(tmp_path, b"a\nbc\nd\n", stop=4) == [(b"a\n", 2), (b"bc", 4)]
    assert lines(tmp_path, b"a\nbc\n", stop=2) == [(b"a\n", 2)]


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"abc\nd\n", [(b"abc\n", 4), (b"d\n", 6)]),
        (b"abcd\ne\n", [(None, 5), (b"e\n", 7)]),
        (b"abcdefghijk\ne\n", [(None, 12), (b"e\n", 14)]),
        (b"abc", [(b"abc", 3)]),
        (b"abcd", [(None, 4)]),
        (b"abcdefgh", [(None, 8)]),
    ],
)
@pytest.mark.usefixtures("few")
def test_a_line_that_is_too_long_is_passed_over(tmp_path: Path, content: bytes, wanted: Any) -> None:
    assert lines(tmp_path, content) == wanted
    assert lines(tmp_path, content, stop=len(content)) == wanted


@pytest.mark.usefixtures("few")
def test_a_long_line_ends_where_reading_does(tmp_path: Path) -> None:
    assert lines(tmp_path, b"abcdefgh\ni\n", stop=7) == [(None, 7)]


def test_results_are_rows_of_plain_values_and_none_where_a_batch_has_no_such_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_lines, "_SLICE", 2)
    parts = [Results([0, 2, 3], {"a": np.arange(3)}), Results([4], {"b": ["x"]}), Results()]

    assert list(plain_rows(parts, ["a", "b"])) == [(0, (0, None)), (2, (1, None)), (3, (2, None)), (4, (None, "x"))]
    assert list(plain_rows(parts, [])) == [(0, ()), (2, ()), (3, ()), (4, ())]


DAY = datetime.datetime(2024, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (np.array([[1, 2]]), [[1, 2]]),
        (np.array([1j]), ["1j"]),
        (["a", np.float32(0.5), None], ["a", 0.5, None]),
        (pa.array([1, None]), [1, None]),
        (pa.array(["a", None]), ["a", None]),
        (pa.array([b"a", None]), ["YQ==", None]),
        (pa.array([decimal.Decimal("1.50")]), ["1.50"]),
        (pa.array([DAY, None], pa.timestamp("s")), ["2024-01-02T03:04:05", None]),
        (pa.array([DAY, None], pa.timestamp("s", "Europe/Berlin")), ["2024-01-02T03:04:05Z", None]),
        (pa.array([DAY.date()], pa.date32()), ["2024-01-02"]),
        (pa.array([DAY.time()], pa.time64("us")), ["03:04:05.000000"]),
        (pa.array([7], pa.duration("s")), [7]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        (pa.array([[1], None, [], [2, 3]]), [[1], None, [], [2, 3]]),
        (pa.array([[b"a"]], pa.list_(pa.binary(), 1)), [["YQ=="]]),
        (pa.array([{"a": b"x", "b": 1}, None]), [{"a": "eA==", "b": 1}, None]),
        (pa.array([{}, None], pa.struct([])), [{}, None]),
        (pa.array([[1], [2, 3]])[1:], [[2, 3]]),
    ],
)
def test_a_column_as_plain_values(column: Any, wanted: list[Any]) -> None:
    found = entries(column)

    assert found == wanted
    assert json.loads(json_text(found)) == wanted


def test_a_time_beyond_what_a_text_can_say_is_its_number() -> None:
    far = 1 << 61

    assert entries(pa.array([far, 0], pa.timestamp("s"))) == [far, "1970-01-01T00:00:00"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, "ä"]}, '{"a": [1, "ä"]}'),
        ([float("nan"), {"a": float("inf")}, 1.5], '[null, {"a": null}, 1.5]'),
        ("\ud800", '"\\ud800"'),
        ([float("nan"), "ä\ud800"], '[null, "\\u00e4\\ud800"]'),
    ],
)
def test_text_that_any_reader_of_json_takes(value: Any, text: str) -> None:
    assert json_text(value) == text
    assert json_text(value, only_ascii=True).isascii()
