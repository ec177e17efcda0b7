"""Writers: the same bytes however the parts were cut, and files that other libraries read."""

from __future__ import annotations

import csv
import datetime
import decimal
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from rankwise.offline import table_writing, text_lines
from rankwise.offline.output import check_fits, write_errors, write_output
from rankwise.offline.parts import Results
from rankwise.offline.workspace import PredictError
from tests.offline.results import COUNT, FAILED, ROWS, TENSORS, batches, content, in_parts, only_output

SUFFIXES = [".parquet", ".arrow", ".jsonl", ".csv", ".npy", ".safetensors", ""]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_where_the_parts_were_cut_does_not_show(tmp_path: Path, suffix: str) -> None:
    written = []
    count = COUNT if suffix else 60  # of a folder each row is a file
    (tmp_path / "there").mkdir()
    for seed in range(3):
        pieces = only_output(batches(count)) if suffix == ".npy" else batches(count)
        output = tmp_path / "there" / f"out{suffix}"
        write_output(output, in_parts(tmp_path, pieces, seed), count)
        written.append(content(output))

    assert all(one == written[0] for one in written)
    assert [path.name for path in output.parent.iterdir()] == [f"out{suffix}"]


def test_lines_are_read_by_json_and_csv(tmp_path: Path) -> None:
    for suffix in (".jsonl", ".csv"):
        write_output(tmp_path / f"out{suffix}", lambda: iter(batches()), COUNT)

    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    table = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))

    assert len(lines) == len(table) == COUNT - len(FAILED)
    assert lines[5] == {"row": 5, "file": "f5", "output": [5.0, pytest.approx(5 / 3)], "label": 0}
    assert (table[5]["row"], table[5]["output_0"], table[5]["label"]) == ("5", "5.0", "0")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_row_that_worked_is_still_an_output(tmp_path: Path, suffix: str) -> None:
    parts = [Results([], {}, [{"row": i, "error": "E", "message": ""} for i in range(3)], 0, 3)]

    write_output(tmp_path / f"out{suffix}", lambda: iter(parts), 3)

    assert (tmp_path / f"out{suffix}").exists()


def test_errors_are_listed_in_order_and_once(tmp_path: Path) -> None:
    assert write_errors([tmp_path / "errors.jsonl"], batches()) == tmp_path / "errors.jsonl"

    lines = [json.loads(line) for line in (tmp_path / "errors.jsonl").read_text().splitlines()]
    assert [line["row"] for line in lines] == sorted(FAILED)
    assert write_errors([tmp_path / "none.jsonl"], []) is None
    assert not (tmp_path / "none.jsonl").exists()


BATCH = 5
BATCHES = 12
DAY = datetime.datetime(2024, 2, 29, 12)


def gaps(make: Any) -> list[Any]:
    return [None if i % 7 == 3 else make(i) for i in range(ROWS)]


# What a column may be, batch by batch (None: this batch has none), its type in a table, and how its last row is written in JSON Lines.
COLUMNS: dict[str, tuple[list[Any], str, Any]] = {
    "vectors": ([np.full((BATCH, 3), b, np.float32) for b in range(BATCHES)], "list<element: float>", [11.0] * 3),
    "another width in each batch": ([np.full((BATCH, b % 3 + 1), b, np.int32) for b in range(BATCHES)], "list<element: int32>", [11] * 3),
    "matrices of any height": (
        [np.full((BATCH, b % 3 + 1, 2), b, np.float16) for b in range(BATCHES)],
        "list<element: list<element: halffloat>>", [[11.0] * 2] * 3,
    ),
    "no width": ([np.zeros((BATCH, 0), np.float32)] * BATCHES, "list<element: float>", []),
    "a list of arrays": ([[np.full(i, b, np.float32) for i in range(BATCH)] for b in range(BATCHES)], "list<element: float>", [11.0] * 4),
    "only in some batches": ([None if b % 3 == 0 else np.full(BATCH, b, np.int8) for b in range(BATCHES)], "int8", 11),
    "integers, then fractions": ([np.arange(BATCH) if b < 4 else np.arange(BATCH) / 2 for b in range(BATCHES)], "double", 2.0),
    "two widths of integers": ([np.arange(BATCH, dtype=np.int16 if b < 4 else np.int32) for b in range(BATCHES)], "int64", 4),
    "integers a double cannot hold": ([np.arange(BATCH) + 2**60 if b < 4 else np.arange(BATCH) / 2 for b in range(BATCHES)], "string", 2.0),
    "integers of 64 bits": ([np.full(BATCH, 2**63 + b, np.uint64) for b in range(BATCHES)], "uint64", 2**63 + 11),
    "integers beyond": ([[1, 2, 3, 4, 2**70]] * BATCHES, "string", 2**70),
    "truth, and none": ([np.arange(BATCH) % 2 == 0 if b % 2 == 0 else [True, None] * 2 + [False] for b in range(BATCHES)], "bool", False),
    "null for long": ([[None] * BATCH if b < 9 else ["a"] * BATCH for b in range(BATCHES)], "string", "a"),
    "nothing but null": ([[None] * BATCH] * BATCHES, "null", None),
    "half a pair": ([["x\ud800", "ü", "", "a\r", 'b"\n,']] * BATCHES, "string", 'b"\n,'),
    "objects that differ": (
        [[{"a": 1, "b": [1, 2.5]} if b % 2 else {"c": "x"}] * BATCH for b in range(BATCHES)],
        "struct<c: string, a: int64, b: list<element: double>>", {"a": 1, "b": [1, 2.5]},
    ),
    "objects with half a pair": ([[{"\ud800": 1}] * BATCH] * BATCHES, "string", {"\ud800": 1}),
    "empty objects": ([[{}] * BATCH] * BATCHES, "string", {}),
    "empty objects in some batches": (
        [[{}] * BATCH if b % 2 else [{"a": 1}] * BATCH for b in range(BATCHES)], "struct<a: int64>", {},
    ),
    "arrays in some batches, lists in others": (
        [[np.full(i, 0.1, np.float32) for i in range(BATCH)] if b % 2 else [[0.1] * i for i in range(BATCH)] for b in range(BATCHES)],
        "list<element: double>", [float(np.float32(0.1))] * 4,
    ),
    "arrays of two dtypes": (
        [[np.full(i, 1, np.int32 if (b + i) % 2 else np.float32) for i in range(BATCH)] for b in range(BATCHES)],
        "list<element: double>", [1] * 4,
    ),
    "anything": ([[1, "a", None, [1], float("nan")]] * BATCHES, "string", None),
    "times": ([pa.array(gaps(lambda i: DAY))], "timestamp[us]", "2024-02-29T12:00:00.000000"),
    "nanoseconds of a zone": (
        [pa.array(gaps(lambda i: i)).cast(pa.timestamp("ns", "Europe/Berlin"))],
        "timestamp[ns, tz=Europe/Berlin]", "1970-01-01T00:00:00.000000058Z",
    ),
    "days": ([pa.array(gaps(lambda i: DAY.date()))], "date32[day]", "2024-02-29"),
    "decimals": ([pa.array(gaps(lambda i: decimal.Decimal(i)), pa.decimal128(20, 3))], "decimal128(20, 3)", "58.000"),
    "bytes": ([pa.array(gaps(lambda i: b"ab" * (i % 3)))], "binary", "YWI="),
    "kept integers with nulls": ([pa.array(gaps(lambda i: i), pa.int32())], "int32", 58),
    "lists of structs": (
        [pa.array(gaps(lambda i: [{"day": DAY.date(), "n": None}] * (i % 3)))],
        "list<element: struct<day: date32[day], n: null>>", [{"day": "2024-02-29", "n": None}],
    ),
    "times that no text can say": (
        [pa.array(gaps(lambda i: 2**50 if i % 2 == 0 else 0)).cast(pa.timestamp("s", "UTC"))], "timestamp[ms, tz=UTC]", 2**50,
    ),
    "days that no text can say": ([pa.array(gaps(lambda i: 2**30), pa.int32()).cast(pa.date32())], "date32[day]", 2**30),
    "UUIDs": ([pa.array(gaps(lambda i: bytes([i]) * 16), pa.uuid())], "extension<arrow.uuid>", "3a3a3a3a-3a3a-3a3a-3a3a-3a3a3a3a3a3a"),
    "truth in bytes": (
        [pa.ExtensionArray.from_storage(pa.bool8(), pa.array(gaps(lambda i: i % 2), pa.int8()))], "extension<arrow.bool8>", False,
    ),
    "lists of UUIDs": (
        [pa.ListArray.from_arrays(pa.array(range(ROWS + 1), pa.int32()), pa.array([bytes(16)] * ROWS, pa.uuid()))],
        "list<element: extension<arrow.uuid>>", ["00000000-0000-0000-0000-000000000000"],
    ),
    "tensors": (
        [TENSORS],
        "extension<arrow.fixed_shape_tensor[value_type=float, shape=[2,2], permutation=[0,1]]>", [[232.0, 233.0], [234.0, 235.0]],
    ),
    "tensors with gaps": (
        [TENSORS.take(pa.array(gaps(lambda i: i)))],
        "extension<arrow.fixed_shape_tensor[value_type=float, shape=[2,2], permutation=[0,1]]>", [[232.0, 233.0], [234.0, 235.0]],
    ),
    "kept vectors": (
        [pa.array([[i, 0.5] for i in range(ROWS)], pa.list_(pa.float32(), 2))], "fixed_size_list<element: float>[2]", [58.0, 0.5],
    ),
}  # fmt: skip


def stored(folder: Path, name: str, seed: int) -> Any:
    """The column in parts; row 59 failed."""
    whole = COLUMNS[name][0]
    pieces = [_piece(name, whole[b] if len(whole) > 1 else whole[0].slice(b * BATCH, BATCH), b) for b in range(BATCHES)]
    return in_parts(folder, pieces, seed)


def _piece(name: str, column: Any, batch: int) -> Results:
    good = BATCH if batch < BATCHES - 1 or name in LAST_ROW_WORKS else BATCH - 1
    errors = [{"row": ROWS - 1, "error": "E", "message": ""}] if good < BATCH else []
    columns = {} if column is None else {"c": column[:good]}
    return Results(range(batch * BATCH, batch * BATCH + good), columns, errors, batch * BATCH, BATCH)


LAST_ROW_WORKS = {name for name, (whole, _, _) in COLUMNS.items() if len(whole) > 1}


@pytest.mark.parametrize("name", COLUMNS)
def test_any_column_is_written_the_same_however_the_parts_were_cut(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_writing, "_GROUP_ROWS", 13)
    monkeypatch.setattr(table_writing, "_GROUP_BYTES", 200)
    monkeypatch.setattr(text_lines, "_SLICE", 4)
    for suffix in (".parquet", ".arrow", ".jsonl", ".csv", ""):
        written = []
        for seed in range(3 if suffix else 2):  # of a folder each row is a file
            folder = tmp_path / f"{seed}{suffix}"
            folder.mkdir()
            write_output(folder / f"out{suffix}", stored(tmp_path, name, seed), ROWS)
            written.append(content(folder / f"out{suffix}"))
        assert all(one == written[0] for one in written), suffix

    last = json.loads((tmp_path / "0.jsonl" / "out.jsonl").read_text().splitlines()[-1])
    assert str(pq.read_schema(tmp_path / "0.parquet" / "out.parquet").field("c").type) == COLUMNS[name][1]
    assert last["c"] == COLUMNS[name][2]
    fields = list(csv.reader(io.StringIO((tmp_path / "0.csv" / "out.csv").read_bytes().decode(), newline="")))
    assert {len(line) for line in fields} == {len(fields[0])} and len(fields) == 1 + ROWS - (name not in LAST_ROW_WORKS)


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("another width in each batch", "row 5 is int32[2], those before it int32[1]"),
        ("only in some batches", "row 0 is missing"),
        ("integers, then fractions", "row 20 is float64[]"),
        ("half a pair", "row 0 is text"),
        ("objects that differ", "row 0 is no array"),
        ("times", "row 0 is text"),
        ("kept integers with nulls", "row 3 is missing"),
    ],
)
def test_what_is_no_array_is_refused_with_its_row(tmp_path: Path, suffix: str, name: str, words: str) -> None:
    for seed in range(3):
        with pytest.raises(PredictError) as caught:
            write_output(tmp_path / f"out{suffix}", stored(tmp_path, name, seed), ROWS)

        assert caught.value.finding.code == "RW834" and words in caught.value.finding.summary
        assert any(".parquet" in step for step in caught.value.finding.next)


@pytest.mark.parametrize("name", ["vectors", "no width", "integers of 64 bits", "kept vectors"])
def test_arrays_take_kept_numbers_and_lists_of_arrays_of_one_shape(tmp_path: Path, name: str) -> None:
    written = []
    for seed in range(3):
        write_output(tmp_path / "out.safetensors", stored(tmp_path, name, seed), ROWS)
        written.append((tmp_path / "out.safetensors").read_bytes())

    assert all(one == written[0] for one in written)
    assert load_file(tmp_path / "out.safetensors")["c"].shape[0] == ROWS


@pytest.mark.parametrize(
    ("suffix", "columns", "words"),
    [
        (".safetensors", {"a": np.zeros(2), "text": ["a", "b"]}, "'text' of row 0 is text"),
        (".npy", {"a": np.zeros(2), "text": ["a", "b"]}, "'text' of row 0 is text"),
        (".npy", {"a": np.zeros(2), "b": np.zeros(2)}, "the model has 2: a, b"),
        (".safetensors", {"a": np.zeros(2, np.complex128)}, "cannot hold the output 'a'"),
        (".parquet", {"a": np.zeros(2, np.complex64)}, "cannot hold the output 'a'"),
        (".csv", {"a": np.zeros((2, 3)), "a_1": ["x", "y"]}, "two fields of a line would be called 'a_1'"),
    ],
)
def test_what_can_be_refused_is_refused_by_the_first_results(tmp_path: Path, suffix: str, columns: dict[str, Any], words: str) -> None:
    with pytest.raises(PredictError) as caught:
        check_fits(tmp_path / f"out{suffix}", Results([0, 1], columns, [], 0, 2))

    assert caught.value.finding.code == "RW834" and words in caught.value.finding.summary
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_first_results_that_fit_leave_nothing_behind(tmp_path: Path, suffix: str) -> None:
    check_fits(tmp_path / f"out{suffix}", only_output(batches())[0])

    assert not list(tmp_path.iterdir())


def test_a_list_of_failed_rows_says_anything(tmp_path: Path) -> None:
    parts = [Results([], {}, [{"row": 0, "error": "E", "message": "no \udcff.npy"}], 0, 1)]

    write_errors([tmp_path / "errors.jsonl"], parts)

    assert json.loads((tmp_path / "errors.jsonl").read_text())["message"] == "no \udcff.npy"


def test_a_list_of_failed_rows_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    def torn() -> Any:
        yield Results([], {}, [{"row": 0, "error": "E", "message": ""}], 0, 1)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write_errors([tmp_path / "errors.jsonl"], torn())

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("was_folder", [True, False])
def test_a_folder_replaces_what_stood_there(tmp_path: Path, was_folder: bool) -> None:
    output = tmp_path / "out"
    if was_folder:
        output.mkdir()
    (output / "old" if was_folder else output).write_text("mine")

    write_output(output, lambda: [Results([0], {"output": np.zeros(1)}, [], 0, 1)], 1)

    assert [path.name for path in output.iterdir()] == ["00000000.npy"]
