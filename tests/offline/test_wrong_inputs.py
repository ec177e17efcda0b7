"""What may be wrong with an input or a command: each gives a finding and no traceback, costs no good row, and harms no file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import rankwise
from rankwise.cli.main import main
from rankwise.errors import UnreadableInput, UsageError
from rankwise.offline.workspace import PredictError
from tests.offline.inputs import KINDS, WIDTH, rows, write

COUNT, BAD = 50, 7
LETTERS = "abcdef"


def always_fails() -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        raise ValueError("no")

    return run


def lines_with(change: Callable[[list[Any]], list[Any]]) -> list[list[Any]]:
    """The rows as numbers, one of them changed."""
    return [change(row) if i == BAD else row for i, row in enumerate(rows(COUNT).tolist())]


def write_csv(path: Path, change: Callable[[list[Any]], list[Any]]) -> None:
    path.write_text("\n".join([",".join(LETTERS), *(",".join(map(str, row)) for row in lines_with(change))]) + "\n")


def write_jsonl(path: Path, change: Callable[[list[Any]], Any]) -> None:
    path.write_text("".join(json.dumps({"x": row}) + "\n" for row in lines_with(change)))


def write_parquet(path: Path, change: Callable[[list[Any]], Any]) -> None:
    pq.write_table(pa.table({"x": pa.array(lines_with(change), pa.list_(pa.float32()))}), path)


def predict(folder: Path, source: str, output: str, *words: str) -> int:
    model = ["--build", "tests.offline.nets:build", "--workers", "0"]
    return main(["predict", *model, "--input", str(folder / source), "--output", str(folder / output), *words])


@pytest.mark.parametrize("batch", ["auto", "1", "16"])
@pytest.mark.parametrize(
    ("source", "write", "change"),
    [
        ("short.csv", write_csv, lambda row: row[:3]),
        ("text.csv", write_csv, lambda row: ["n/a", *row[1:]]),
        ("empty-field.csv", write_csv, lambda row: ["", *row[1:]]),
        ("short.jsonl", write_jsonl, lambda row: row[:3]),
        ("text.jsonl", write_jsonl, lambda row: "n/a"),
        ("null.jsonl", write_jsonl, lambda row: None),
        ("short.parquet", write_parquet, lambda row: row[:3]),
        ("null.parquet", write_parquet, lambda row: None),
        ("null-inside.parquet", write_parquet, lambda row: [None, *row[1:]]),
    ],
)
def test_one_bad_row_costs_itself(
    tmp_path: Path, source: str, write: Any, change: Any, batch: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / source, change)

    assert predict(tmp_path, source, "out.npy", "--columns", "a,b,c,d,e,f" if source.endswith("csv") else "x", "--batch", batch) == 0

    failed = [json.loads(line)["row"] for line in (tmp_path / "errors.jsonl").read_text().splitlines()]
    assert failed == [BAD]
    assert np.flatnonzero(np.isnan(np.load(tmp_path / "out.npy")).any(axis=1)).tolist() == [BAD]
    assert f"1 row failed; see {tmp_path / 'errors.jsonl'}; row {BAD}: " in capsys.readouterr().out


def damaged_parquet(path: Path) -> None:
    write_parquet(path, list)
    data = bytearray(path.read_bytes())
    data[4:100] = bytes(96)
    path.write_bytes(data)


def prepare(folder: Path) -> None:
    np.save(folder / "x.npy", rows(COUNT))
    np.save(folder / "one.npy", np.float32(1))
    with (folder / "several.npy").open("wb") as file:
        np.savez(file, x=rows(COUNT))
    write_csv(folder / "x.csv", list)
    for kind in ("csv", "jsonl", "npy", "parquet", "arrow", "safetensors"):
        (folder / f"empty.{kind}").touch()
        (folder / f"junk.{kind}").write_bytes(b"\x93NUMPY junk \n" * 40)
    damaged_parquet(folder / "damaged.parquet")
    np.save(folder / "short.npy", rows(COUNT))
    (folder / "short.npy").write_bytes((folder / "x.npy").read_bytes()[:-100])
    (folder / "empty").mkdir()
    (folder / "files").mkdir()
    np.save(folder / "files" / "0.npy", rows(1)[0])
    torch.save({"w": torch.zeros(3)}, folder / "other.pt")
    (folder / "junk.pt2").write_text("junk")


@pytest.mark.parametrize(
    ("source", "words", "code", "said"),
    [
        ("gone.csv", [], "RW002", "there is no input"),
        ("x.csv", ["--columns", "z"], "RW001", "no column 'z'"),
        ("x.npy", ["--columns", "z"], "RW001", "is one array"),
        ("files", ["--columns", "z"], "RW001", "is a folder of files"),
        ("empty.csv", [], "RW002", "no header line"),
        *[(f"empty.{kind}", [], "RW002", f"empty.{kind} ") for kind in ("npy", "parquet", "arrow", "safetensors")],
        *[(f"junk.{kind}", [], "RW002", f"junk.{kind} ") for kind in ("npy", "parquet", "arrow", "safetensors")],
        ("damaged.parquet", [], "RW002", "from row 0 on"),
        ("short.npy", [], "RW002", "cannot be read"),
        ("one.npy", [], "RW002", "a single number"),
        ("several.npy", [], "RW002", "an archive of arrays"),
        ("empty", [], "RW002", "no file in"),
        ("x.npy", ["--build", "tests.offline.nets"], "RW001", "is not an import path"),
        ("x.npy", ["--build", "tests.offline.gone:build"], "RW001", "there is no module"),
        ("x.npy", ["--build", "tests.offline.nets:gone"], "RW001", "has no 'gone'"),
        ("x.npy", ["--build", "tests.offline.nets:raising"], "RW807", "no such layer"),
        ("x.npy", ["--build", "tests.offline.nets:number"], "RW001", "returned a int"),
        ("x.npy", ["--build", "gone.pt2"], "RW002", "gone.pt2 is not there"),
        ("x.npy", ["--build", "junk.pt2"], "RW002", "junk.pt2 is not a program"),
        ("x.npy", ["--weights", "gone.pt"], "RW001", "no weights at"),
        ("x.npy", ["--weights", ""], "RW001", "weights is empty"),
        ("x.npy", ["--weights", "other.pt"], "RW734", "does not fit"),
        ("x.npy", ["--device", "gpu"], "RW001", "no device 'gpu'"),
        ("x.npy", ["--output", "gone/out.npy"], "RW001", "there is no folder gone"),
        ("x.npy", ["--output", "out.xlsx"], "RW001", "no writer"),
        ("x.npy", ["--errors", "gone/errors.jsonl"], "RW001", "there is no folder gone"),
        ("x.npy", ["--output", "x.npy", "--overwrite"], "RW001", "would be replaced"),
        ("x.npy", ["--errors", "x.npy"], "RW001", "would be replaced"),
        ("files", ["--output", "files", "--overwrite"], "RW001", "would be replaced"),
        ("files/0.npy", ["--output", "files", "--overwrite"], "RW001", "would be replaced"),
        ("x.csv", ["--keep", "a"], "RW001", "cannot be kept"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_is_wrong_is_a_finding_and_harms_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    source: str,
    words: list[str],
    code: str,
    said: str,
) -> None:
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    assert predict(tmp_path, source, "out.npy", *words) == 2

    told = capsys.readouterr().err
    words_of_it = " ".join(told.replace(" certain", "").split())  # the folder's name may be long, so it goes over any number of lines
    assert told.startswith(code) and said in words_of_it, told
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_model_that_takes_none_of_the_rows_is_told_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "wide.npy", np.zeros((9, WIDTH + 1), np.float32))

    assert predict(tmp_path, "wide.npy", "out.npy") == 1

    told = capsys.readouterr()
    assert "9 rows failed" in told.out
    assert told.err.startswith("RW833  none of the 9 rows worked") and "shapes cannot be multiplied" in told.err and "--columns" in told.err


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["pipe.jsonl", "zeros.csv", "zeros.npy"])
def test_what_may_never_end_is_not_read(tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    os.mkfifo(place) if name.startswith("pipe") else place.symlink_to("/dev/zero")

    with pytest.raises(UnreadableInput, match="pipe or a device"):
        rankwise.predict("tests.offline.nets:build", place, tmp_path / "out.npy", workers=0)


@pytest.mark.parametrize("what", ["output", "errors"])
def test_no_pipe_is_replaced_by_a_file(tmp_path: Path, what: str) -> None:
    pipe = tmp_path / "pipe.npy"
    os.mkfifo(pipe)
    np.save(tmp_path / "x.npy", rows(3))
    written = {"output": tmp_path / "out.npy", "errors": tmp_path / "errors", what: pipe}
    with pytest.raises(UsageError, match="is not a file"):
        rankwise.predict(always_fails, tmp_path / "x.npy", workers=0, overwrite=True, max_errors=9, **written)

    assert pipe.is_fifo()


@pytest.mark.timeout(120)
def test_pipes_and_devices_in_a_folder_cost_themselves(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"abc")
    os.mkfifo(folder / "b.txt")
    (folder / "c.txt").symlink_to("/dev/zero")
    (folder / "d.txt").symlink_to("nowhere")
    done = rankwise.predict(lambda: lambda files: [len(file) for file in files], folder, tmp_path / "out.jsonl", workers=0)

    assert (done.rows, done.failed) == (4, 3)
    assert json.loads((tmp_path / "out.jsonl").read_text())["output"] == 3


def test_an_input_without_rows_gives_an_output_without_rows(tmp_path: Path) -> None:
    (tmp_path / "header.csv").write_text("x\n")

    assert predict(tmp_path, "header.csv", "out.jsonl", "--columns", "x") == 0

    assert (tmp_path / "out.jsonl").read_text() == ""


def test_a_file_nobody_may_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(tmp_path / "x.csv", list)

    def refuse(self: Path, *args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root may read everything

    assert predict(tmp_path, "x.csv", "out.npy") == 2
    assert "RW002" in (told := capsys.readouterr().err) and "Permission denied" in told and "ls -l" in told


@pytest.mark.parametrize("kind", KINDS)
def test_names_that_are_not_utf8_are_names_like_others(tmp_path: Path, kind: str) -> None:
    (tmp_path / "plain").mkdir()
    path, named = write(tmp_path / "plain", kind, 3)
    folder = (tmp_path / "plain").rename(tmp_path / os.fsdecode(b"caf\xe9"))

    output = folder / ("out.jsonl" if kind == "files" else f"out{path.suffix}")
    done = rankwise.predict("tests.offline.nets:build", folder / path.name, output, columns=named.get("columns", ()), workers=0, batch=2)

    assert (done.rows, done.failed) == (3, 0)
    assert output.exists()


def test_a_place_where_no_folder_can_be_made_is_told(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))

    with pytest.raises(PredictError) as raised:
        rankwise.predict(lambda: lambda x: x, tmp_path / "x.npy", "/proc/out.npy", workers=0)

    assert raised.value.finding.code == "RW741"
