"""Writers: the same bytes however the parts were cut, and files that other libraries read."""

from __future__ import annotations

import csv
import datetime
import decimal
import io
import itertools
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from rankwise.offline import table_writing, text_lines
from rankwise.offline.output import check_fits, write_errors, write_output
from rankwise.offline.parts import Part, Results, read_part, write_part
from rankwise.offline.workspace import PredictError

COUNT = 1000
FAILED = {17, 400, 401, 999}
SUFFIXES = [".parquet", ".arrow", ".jsonl", ".csv", ".npy", ".safetensors", ""]


def results(first: int, stop: int) -> Results:
    good = [row for row in range(first, stop) if row not in FAILED]
    x = np.asarray(good, np.float32)
    return Results(
        rows=good,
        columns={"file": [f"f{row}" for row in good], "output": np.stack([x, x / 3], axis=1), "label": np.asarray(good) % 5}
        if good
        else {},
        errors=[{"row": row, "error": "ValueError", "message": "ü"} for row in range(first, stop) if row in FAILED],
        first_row=first,
        length=stop - first,
        file_column="file",
    )


def batches(count: int = COUNT) -> list[Results]:
    """One of them a failed row alone."""
    edges = [0, 17, 18, *range(30, count, 30), count]
    return [results(start, stop) for start, stop in itertools.pairwise(edges)]


def in_parts(folder: Path, batches: list[Results], seed: int) -> Any:
    """In parts that were written and read again, cut behind some batches, or behind none, or behind all."""
    count = len(batches)
    cut = random.Random(seed).sample(range(1, count), (0, count - 1, min(count - 1, 3))[seed])
    paths = []
    for start, stop in itertools.pairwise(sorted({0, count, *cut})):
        paths.append(folder / f"part-{seed}-{start}")
        write_part(paths[-1], Part(*batches[start:stop]))
    return lambda: itertools.chain.from_iterable(read_part(path) for path in paths)


def only_output(parts: list[Results]) -> list[Results]:
    return [replace(part, columns={name: column for name, column in part.columns.items() if name in ("file", "output")}) for part in parts]


def content(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path.parent)): file.read_bytes() for file in files}


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


def test_tables_are_read_by_pyarrow(tmp_path: Path) -> None:
    for suffix in (".parquet", ".arrow"):
        write_output(tmp_path / f"out{suffix}", lambda: iter(batches()), COUNT)
    tables = [pq.read_table(tmp_path / "out.parquet"), pa.ipc.open_file(tmp_path / "out.arrow").read_all()]

    for table in tables:
        assert table["row"].to_pylist() == [row for row in range(COUNT) if row not in FAILED]
        assert table["output"].to_pylist()[2] == [2.0, pytest.approx(2 / 3)]
        assert table["file"].to_pylist()[-1] == "f998"


def test_lines_are_read_by_json_and_csv(tmp_path: Path) -> None:
    for suffix in (".jsonl", ".csv"):
        write_output(tmp_path / f"out{suffix}", lambda: iter(batches()), COUNT)

    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    table = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))

    assert len(lines) == len(table) == COUNT - len(FAILED)
    assert lines[5] == {"row": 5, "file": "f5", "output": [5.0, pytest.approx(5 / 3)], "label": 0}
    assert (table[5]["row"], table[5]["output_0"], table[5]["label"]) == ("5", "5.0", "0")


def test_arrays_keep_a_place_for_failed_rows(tmp_path: Path) -> None:
    write_output(tmp_path / "out.npy", lambda: iter(only_output(batches())), COUNT)
    write_output(tmp_path / "out.safetensors", lambda: iter(batches()), COUNT)
    array, tensors = np.load(tmp_path / "out.npy"), load_file(tmp_path / "out.safetensors")

    assert array.shape == (COUNT, 2)
    assert np.isnan(array[sorted(FAILED)]).all() and array[998, 0] == 998
    np.testing.assert_array_equal(array, tensors["output"])
    assert tensors["label"][17] == 0 and tensors["label"][18] == 3


def test_a_number_json_cannot_say_is_null(tmp_path: Path) -> None:
    parts = [Results([0], {"output": np.array([[np.nan, 1.0, np.inf]])}, [], 0, 1)]

    write_output(tmp_path / "out.jsonl", lambda: iter(parts), 1)

    assert json.loads((tmp_path / "out.jsonl").read_text())["output"] == [None, 1.0, None]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_row_that_worked_is_still_an_output(tmp_path: Path, suffix: str) -> None:
    parts = [Results([], {}, [{"row": i, "error": "E", "message": ""} for i in range(3)], 0, 3)]

    write_output(tmp_path / f"out{suffix}", lambda: iter(parts), 3)

    assert (tmp_path / f"out{suffix}").exists()


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_outputs_that_change_are_a_finding_and_no_file(tmp_path: Path, suffix: str) -> None:
    widths = (2, 4)
    parts = [Results([i], {"output": np.zeros((1, width), np.float32)}, [], i, 1) for i, width in enumerate(widths)]

    with pytest.raises(PredictError) as caught:
        write_output(tmp_path / f"out{suffix}", lambda: iter(parts), 2)

    assert caught.value.finding.code == "RW834"
    assert "row 1 is float32[4]" in caught.value.finding.summary
    assert not list(tmp_path.iterdir())


def test_several_outputs_do_not_go_into_npy(tmp_path: Path) -> None:
    with pytest.raises(PredictError) as caught:
        write_output(tmp_path / "out.npy", lambda: iter(batches()), COUNT)

    assert caught.value.finding.code == "RW834"


def test_errors_are_listed_in_order_and_once(tmp_path: Path) -> None:
    assert write_errors(tmp_path / "errors.jsonl", batches()) == len(FAILED)

    lines = [json.loads(line) for line in (tmp_path / "errors.jsonl").read_text().splitlines()]
    assert [line["row"] for line in lines] == sorted(FAILED)
    assert write_errors(tmp_path / "none.jsonl", []) == 0
    assert not (tmp_path / "none.jsonl").exists()


BATCH = 5
BATCHES = 12
ROWS = BATCH * BATCHES
DAY = datetime.datetime(2024, 2, 29, 12)


def gaps(make: Any) -> list[Any]:
    return [None if i % 7 == 3 else make(i) for i in range(ROWS)]


TENSORS = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 2, 2))


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


def test_a_list_of_distinct_values_is_kept_only_for_what_comes_again(tmp_path: Path) -> None:
    """For numbers that do not, it would take a third more room and most of the time of writing."""
    numbers = np.random.default_rng(0).permutation(5000)
    texts = [["cat", "dog"][i % 2] for i in range(5000)]
    columns = {"score": numbers / 7, "id": numbers, "label": numbers % 3, "tags": [[text] for text in texts], "text": texts}

    write_output(tmp_path / "out.parquet", lambda: [Results(np.arange(5000), columns, length=5000)], 5000)

    group = pq.read_metadata(tmp_path / "out.parquet").row_group(0)
    stored = {group.column(i).path_in_schema: group.column(i).has_dictionary_page for i in range(group.num_columns)}
    assert stored == {"row": False, "score": False, "id": False, "label": True, "tags.list.element": True, "text": True}


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


def test_kept_tensors_are_arrays_of_a_folder(tmp_path: Path) -> None:
    parts = [Results([0, 1], {"output": np.zeros(2), "image": TENSORS.take(pa.array([3, None]))}, [], 0, 2)]

    write_output(tmp_path / "out", lambda: iter(parts), 2)

    assert sorted(path.name for path in (tmp_path / "out").glob("*image*")) == ["00000000.image.npy"]
    assert np.load(tmp_path / "out" / "00000000.image.npy").tolist() == [[12.0, 13.0], [14.0, 15.0]]


def test_a_kept_column_does_not_name_files(tmp_path: Path) -> None:
    parts = [Results([0, 1], {"file": ["../../escaped", "/escaped"], "output": np.zeros(2)}, [], 0, 2)]

    (tmp_path / "in").mkdir()
    write_output(tmp_path / "in" / ".." / "out", lambda: iter(parts), 2)

    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["00000000.file.json", "00000000.output.npy", "00000001.file.json", "00000001.output.npy"]


@pytest.mark.parametrize("files", [["../escaped"], ["/escaped"], ["same", "same"], ["a", "a.npy/b"]])
def test_a_file_outside_the_folder_or_twice_is_refused(tmp_path: Path, files: list[str]) -> None:
    parts = [Results(range(len(files)), {"file": files, "output": np.zeros(len(files))}, [], 0, len(files), file_column="file")]

    with pytest.raises(PredictError) as caught:
        write_output(tmp_path / "out", lambda: iter(parts), len(files))

    assert caught.value.finding.code == "RW834"
    assert not list(tmp_path.iterdir())


def test_a_list_of_failed_rows_says_anything(tmp_path: Path) -> None:
    parts = [Results([], {}, [{"row": 0, "error": "E", "message": "no \udcff.npy"}], 0, 1)]

    write_errors(tmp_path / "errors.jsonl", parts)

    assert json.loads((tmp_path / "errors.jsonl").read_text())["message"] == "no \udcff.npy"


def test_a_list_of_failed_rows_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    def torn() -> Any:
        yield Results([], {}, [{"row": 0, "error": "E", "message": ""}], 0, 1)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write_errors(tmp_path / "errors.jsonl", torn())

    assert not list(tmp_path.iterdir())


def test_a_group_is_no_larger_than_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_writing, "_GROUP_BYTES", 10_000)
    texts = ["x" * (row % 3000) for row in range(500)]
    kept = pa.array(texts)
    parts = [Results(range(at, at + 5), {"text": texts[at : at + 5], "kept": kept[at : at + 5]}, [], at, 5) for at in range(0, 500, 5)]

    found = list(table_writing.tables_of(lambda: parts)[1])

    assert max(group.nbytes - group.slice(len(group) - 5).nbytes for group in found) < 10_000
    assert [row for group in found for row in group["row"].to_pylist()] == list(range(500))


@pytest.mark.parametrize("was_folder", [True, False])
def test_a_folder_replaces_what_stood_there(tmp_path: Path, was_folder: bool) -> None:
    output = tmp_path / "out"
    if was_folder:
        output.mkdir()
    (output / "old" if was_folder else output).write_text("mine")

    write_output(output, lambda: [Results([0], {"output": np.zeros(1)}, [], 0, 1)], 1)

    assert [path.name for path in output.iterdir()] == ["00000000.npy"]
