"""Writers: the same bytes however the parts were cut, and files that other libraries read."""

from __future__ import annotations

import csv
import itertools
import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from rankwise.predict.parts import Results, is_whole, join, read_part, write_part
from rankwise.predict.sinks.sink import write_errors, write_output
from rankwise.predict.workspace import PredictError

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
    )


def cuts(seed: int, count: int = COUNT) -> list[Results]:
    draw = random.Random(seed)
    inner = draw.sample(range(1, count), 0 if seed == 0 else draw.randrange(1, 30))
    edges = sorted({0, count, *inner, *([17, 18] if seed == 1 else [])})  # one of them a failed row alone
    return [results(start, stop) for start, stop in itertools.pairwise(edges)]


def only_output(parts: list[Results]) -> list[Results]:
    return [Results(p.rows, {k: v for k, v in p.columns.items() if k == "output"}, p.errors, p.first_row, p.length) for p in parts]


def content(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path.parent)): file.read_bytes() for file in files}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_where_the_parts_were_cut_does_not_show(tmp_path: Path, suffix: str) -> None:
    written = []
    count = COUNT if suffix else 60  # of a folder each row is a file
    for seed in range(6):
        parts = only_output(cuts(seed, count)) if suffix == ".npy" else cuts(seed, count)
        output = tmp_path / f"out{suffix}"
        write_output(output, lambda parts=parts: iter(parts), count)
        written.append(content(output))

    assert all(one == written[0] for one in written)
    assert [path.name for path in tmp_path.iterdir()] == [f"out{suffix}"]


def test_tables_are_read_by_pyarrow(tmp_path: Path) -> None:
    for suffix in (".parquet", ".arrow"):
        write_output(tmp_path / f"out{suffix}", lambda: iter(cuts(3)), COUNT)
    tables = [pq.read_table(tmp_path / "out.parquet"), pa.ipc.open_file(tmp_path / "out.arrow").read_all()]

    for table in tables:
        assert table["row"].to_pylist() == [row for row in range(COUNT) if row not in FAILED]
        assert table["output"].to_pylist()[2] == [2.0, pytest.approx(2 / 3)]
        assert table["file"].to_pylist()[-1] == "f998"


def test_lines_are_read_by_json_and_csv(tmp_path: Path) -> None:
    for suffix in (".jsonl", ".csv"):
        write_output(tmp_path / f"out{suffix}", lambda: iter(cuts(3)), COUNT)

    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    table = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))

    assert len(lines) == len(table) == COUNT - len(FAILED)
    assert lines[5] == {"row": 5, "file": "f5", "output": [5.0, pytest.approx(5 / 3)], "label": 0}
    assert (table[5]["row"], table[5]["output_0"], table[5]["label"]) == ("5", "5.0", "0")


def test_arrays_keep_a_place_for_failed_rows(tmp_path: Path) -> None:
    write_output(tmp_path / "out.npy", lambda: iter(only_output(cuts(2))), COUNT)
    write_output(tmp_path / "out.safetensors", lambda: iter(cuts(2)), COUNT)
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


@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".csv"])
def test_outputs_that_change_are_a_finding_and_no_file(tmp_path: Path, suffix: str) -> None:
    widths = (2, 4)
    parts = [Results([i], {"output": np.zeros((1, width), np.float32)}, [], i, 1) for i, width in enumerate(widths)]

    with pytest.raises(PredictError) as caught:
        write_output(tmp_path / f"out{suffix}", lambda: iter(parts), 2)

    assert caught.value.finding.code == "RW834"
    assert not list(tmp_path.iterdir())


def test_several_outputs_do_not_go_into_npy(tmp_path: Path) -> None:
    with pytest.raises(PredictError) as caught:
        write_output(tmp_path / "out.npy", lambda: iter(cuts(0)), COUNT)

    assert caught.value.finding.code == "RW834"


def test_errors_are_listed_in_order_and_once(tmp_path: Path) -> None:
    assert write_errors(tmp_path / "errors.jsonl", cuts(4)) == len(FAILED)

    lines = [json.loads(line) for line in (tmp_path / "errors.jsonl").read_text().splitlines()]
    assert [line["row"] for line in lines] == sorted(FAILED)
    assert write_errors(tmp_path / "none.jsonl", []) == 0
    assert not (tmp_path / "none.jsonl").exists()


def test_a_part_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    part = join([results(0, 20), results(20, 50)])
    part.columns["empty"] = np.zeros((len(part.rows), 0), np.int16)
    part.columns["half"] = np.ones((len(part.rows), 2, 2), np.float16)
    facts = write_part(tmp_path / "part", part)
    back = read_part(tmp_path / "part")

    assert back.rows.tolist() == part.rows.tolist()
    assert (back.errors, back.first_row, back.length) == (part.errors, 0, 50)
    for name, column in part.columns.items():
        if isinstance(column, np.ndarray):
            np.testing.assert_array_equal(back.columns[name], column)
            assert back.columns[name].dtype == column.dtype
        else:
            assert back.columns[name] == column
    assert is_whole(tmp_path / "part", facts["bytes"], facts["crc"])
    data = bytearray((tmp_path / "part").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "part").write_bytes(data)
    assert not is_whole(tmp_path / "part", facts["bytes"], facts["crc"])
