"""CSV: what is a row, what is a number, and what costs only itself."""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwise.errors import UnreadableInput, UsageError
from rankwise.offline import text_lines
from rankwise.offline.format import LateFraction
from rankwise.offline.formats import csv as csv_format
from rankwise.offline.row_batches import Selection
from rankwise.offline.source import open_source
from tests.offline.formats.reading import NAME, X, good, read

QUOTES = {
    "within a field": (b'name,x\n5" disk,1.5\nb,2.5\n', ['5" disk', "b"]),
    "around a field": (b'name,x\n"a,\n""b""",1.5\n', ['a,\n"b"']),
    "behind a quoted field": (b'name,x\n"a"b"c,1.5\n\n"d"e,2.5', ['ab"c', "de"]),
    "behind a quoted field, and one over two lines": (b'name,x,y\n"a"b,1.5,"c\nd"\n', ["ab"]),
    "around the last field, without a line's end": (b'x,name\n1.5,"a,b"', ["a,b"]),
    "never closed": (b'name,x\na,1.5\n"b,2.5\nc,3.5\n', ["a", "c"]),
    "closed only where another field begins": (b'name,x\n"a,1.5\nb,2.5\n"c",3.5\n"d\nd",4.5\n', ["b", "c", "d\nd"]),
    "never closed in the last line": (b'x,name\n1.5,a\n2.5,"b', ["a"]),
}


@pytest.mark.parametrize(("content", "names"), QUOTES.values(), ids=QUOTES)
def test_only_a_quote_at_the_start_of_a_field_opens_one(tmp_path: Path, content: bytes, names: list[str]) -> None:
    batch = read(tmp_path / "x.csv", content, NAME)

    assert good(batch, "name") == names
    assert all("is not closed" in why for why in batch.broken.values())


def test_neither_an_endless_quote_nor_an_endless_line_takes_more_than_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (text_lines, csv_format):
        monkeypatch.setattr(module, "MAX_LINE", 1_000_000)
    long = b"y" * 100_000
    batch = read(tmp_path / "x.csv", b'name,x\n"open,1\n' + (long + b",2\n") * 12 + long * 25 + b"\nb,3\n", X)

    assert list(batch.broken) == [0, 13]
    assert good(batch) == [2] * 12 + [3]
    assert "without an end" in batch.broken[13]


LINES = {
    "CRLF": (b"name,x\r\na,1\r\nb,2\r\n", ["a", "b"]),
    "a CR within a field": (b"name,x\na\rb,1\nc,2\n", ["a\rb", "c"]),
    "a byte order mark": (b"\xef\xbb\xbfname,x\na,1\n", ["a"]),
    "a NUL": (b"name,x\na\0b,1\n", ["a\0b"]),
    "a long field": (b"name,x\n" + b"a" * 200_000 + b",1\n", ["a" * 200_000]),
    "blank lines, and one of empty fields": (b"name,x\n\na,1\n\r\n,1\n", ["a", ""]),
    "fields that look like numbers": (b"name,x\n01234,1\n2024_01,2\n1e3,3\n", ["01234", "2024_01", "1e3"]),
    "bytes that are not UTF-8": (b"name,x\nM\xfcller,1\nM\xc3\xbcller,2\n", ["Müller"]),
}


@pytest.mark.parametrize(("content", "names"), LINES.values(), ids=LINES)
def test_what_is_kept_of_a_csv_is_the_text_as_it_stands(tmp_path: Path, content: bytes, names: list[str]) -> None:
    assert good(read(tmp_path / "x.csv", content, NAME), "name") == names


def test_rows_of_empty_fields_are_rows_of_a_tsv(tmp_path: Path) -> None:
    batch = read(tmp_path / "x.tsv", b"a\tx\nq\t1.0\n\t\nr\t2.0\n", Selection(("x",), ("a",)))

    assert batch.length == 3 and list(batch.broken) == [1]


def test_a_column_that_nobody_wants_fails_no_row(tmp_path: Path) -> None:
    rows = b"".join(b"%d,%d.5\n" % (i, i) for i in range(150))
    batch = read(tmp_path / "x.csv", b"name,x\n" + rows + b"n/a,1.5\nM\xfcller,2.5\n", X)

    assert batch.broken == {} and batch.length == 152


def test_bytes_that_are_not_utf8_say_in_which_column(tmp_path: Path) -> None:
    batch = read(tmp_path / "x.csv", b"name,x\nM\xfcller,1\n", NAME)

    assert "'name' is not UTF-8" in batch.broken[0] and r"M\xfcller" in batch.broken[0]


NUMBERS = {
    "whole": (["1", "-2", "+3"], np.int64, [1, -2, 3]),
    "beyond 64 bits": (["1", "100000000000000000000"], np.float64, [1.0, 1e20]),
    "beyond 64 bits and float64": (["1", "99999999999999999999"], np.int64, [1]),
    "in float64's own digits": (["0.5", "12345678901234567000"], np.float64, [0.5, 12345678901234567000.0]),
    "not in float64": (["0.5", "9007199254740993", "1e999", "inf"], np.float64, [0.5, np.inf]),
    "with leading zeros": (["01", "2"], np.int64, [1, 2]),
    "float64 is not cut": (["0.1", "16777217.5"], np.float64, [0.1, 16777217.5]),
    "some are missing": (["", "", "", "1"], np.int64, [1]),
    "some are no numbers": (["1", "2", "3", "2024_01", "٣"], np.int64, [1, 2, 3]),
}


@pytest.mark.parametrize(("texts", "dtype", "wanted"), NUMBERS.values(), ids=NUMBERS)
def test_numbers_of_a_csv(tmp_path: Path, texts: list[str], dtype: Any, wanted: list[float]) -> None:
    batch = read(tmp_path / "x.csv", "\n".join(["x,y", *(f"{text},0" for text in texts)]).encode())

    assert batch.columns["x"].dtype == dtype
    assert good(batch) == wanted


def test_a_fraction_that_comes_late_makes_floating_point_of_the_rows_before_it(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("\n".join(["x,y", *["1,0"] * 120, "1.5,0"]))
    source = open_source(tmp_path / "x.csv", X)

    with pytest.raises(LateFraction):
        list(source.batches(100))
    source.take_for_fractional(["x"])

    assert [batch.columns["x"].dtype for batch in source.batches(100)] == [np.float64, np.float64]


HEADERS = {
    "a name that is there twice": (b"x,x\n1,2\n", Selection(("x",)), "2 columns 'x'"),
    "one of them all is there twice": (b"x,y,y\n1,2,3\n", Selection(), "2 columns 'y'"),
    "UTF-16": ("name,x\na,1\n".encode("utf-16"), X, "not UTF-8(.|\n)*iconv -f utf-16"),
    "Latin 1": (b"M\xfcller,x\na,1\n", X, "not UTF-8(.|\n)*iconv -f latin1"),
    "compressed": (gzip.compress(b"name,x\na,1\n"), X, "not UTF-8(.|\n)*gunzip"),
    "lines that end with CR only": (b"name,x\ra,1\rb,2\r", X, "end with CR only"),
    "semicolons": (b"\xef\xbb\xbfname;x\r\na;1\r\n", X, "';' between its names"),
    "nothing is left for the model": (b"x,y\n1,2\n", Selection((), ("x", "y")), "none is left"),
}


@pytest.mark.parametrize(("content", "selection", "finding"), HEADERS.values(), ids=HEADERS)
def test_a_header_that_cannot_be_meant_is_a_finding(tmp_path: Path, content: bytes, selection: Selection, finding: str) -> None:
    with pytest.raises((UsageError, UnreadableInput), match=finding):
        read(tmp_path / "x.csv", content, selection)


def test_a_column_may_have_the_marks_of_others_in_its_name(tmp_path: Path) -> None:
    assert read(tmp_path / "x.csv", b'"a, b"\n1\n', Selection()).columns["a, b"].tolist() == [1]
    assert read(tmp_path / "y.csv", b"a;b\n1\n", Selection(("a;b",))).columns["a;b"].tolist() == [1]


def test_a_quoted_line_break_in_a_header_is_part_of_a_name(tmp_path: Path) -> None:
    assert good(read(tmp_path / "x.csv", b'"a\r\nb",x\r\n1,2\r\n')) == [2]


def test_a_name_that_is_there_twice_does_no_harm_where_nobody_wants_it(tmp_path: Path) -> None:
    assert good(read(tmp_path / "x.csv", b"y,x,y\n1,2,3\n")) == [2]


@pytest.mark.parametrize("size", [1, 2, 7])
def test_reading_goes_on_behind_records_of_all_kinds(tmp_path: Path, size: int) -> None:
    content = b'name,x\n"a\nb",1\n\n5" c,2\nd\re,3\nM\xfc,4\n"open,5\nf,6\n\ng,7\n'
    (tmp_path / "x.csv").write_bytes(content)
    source = open_source(tmp_path / "x.csv", NAME)
    batches = list(source.batches(size))
    assert sum(batch.length for batch in batches) == 7

    for before, after in pairwise(batches):
        again = next(source.batches(size, after.first_row, before.position))
        assert (again.kept, again.broken, again.position) == (after.kept, after.broken, after.position)


def test_a_number_that_would_be_rounded_is_told_with_its_column(tmp_path: Path) -> None:
    batch = read(tmp_path / "x.csv", b"x,y\n0.5,0\n9007199254740993,0\n")

    assert batch.broken == {1: "'9007199254740993' in column 'x', of which float64 would make 9007199254740992"}


def test_a_csv_field_that_is_no_number_is_one_failed_row(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b,name\n" + "1,2.5,u\n" * 150 + "1,x,u\n1,2\n2,3.5,v\n")

    (batch,) = open_source(path, Selection(("a", "b"), ("name",))).batches(1000)

    assert sorted(batch.broken) == [150, 151]
    assert batch.columns["a"].dtype == np.int64 and batch.columns["b"].dtype == np.float64
    assert batch.kept["name"][152] == "v"
