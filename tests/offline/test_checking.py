"""What a job must not replace, and what is refused before anything starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rankwise
from rankwise.errors import RankwiseError, UsageError
from rankwise.offline import running
from tests.offline.inputs import rows, write
from tests.offline.nets import build

JOB: dict[str, Any] = {"workers": 0, "batch": 16}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "npy", 40)
    torch.save(build().state_dict(), tmp_path / "wt.pt")
    (tmp_path / "wt.pt").rename(tmp_path / "wt.npy")  # whatever it is called
    return tmp_path


def run(folder: Path, output: str, **more: Any) -> Any:
    return rankwise.predict("tests.offline.nets:build", folder / "x.npy", folder / output, **{**JOB, **more})


@pytest.mark.parametrize(
    ("output", "more", "said"),
    [
        ("x.npy", {}, "is the input"),
        ("wt.npy", {"weights": "wt.npy"}, "is the weights"),
        ("out.jsonl", {"errors": "out.jsonl"}, "is the output"),
        ("out", {"errors": "out/errors.jsonl"}, "there is no folder"),
        ("out.jsonl", {"errors": "x.npy"}, "is the input"),
        ("out.jsonl", {"errors": "wt.npy", "weights": "wt.npy"}, "is the weights"),
        ("out.jsonl", {"max_errors": -1}, "max_errors"),
    ],
)
def test_nothing_that_is_read_is_replaced(folder: Path, output: str, more: dict[str, Any], said: str) -> None:
    given = {key: folder / value if isinstance(value, str) else value for key, value in more.items()}
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    with pytest.raises(UsageError, match=said):
        run(folder, output, overwrite=True, **given)

    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_second_path_of_what_is_read_is_known(folder: Path) -> None:
    """A hard link stands for a folder that is mounted at two places, too."""
    os.link(folder / "x.npy", folder / "same.npy")

    with pytest.raises(UsageError, match="is the input"):
        run(folder, "same.npy", overwrite=True)


def test_a_folder_with_things_of_somebody_elses_is_not_deleted(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "precious.txt").write_text("mine")

    with pytest.raises(UsageError, match="already there"):
        run(folder, "out", overwrite=True)
    assert (folder / "out" / "precious.txt").read_text() == "mine"
    (folder / "out" / "precious.txt").unlink()
    run(folder, "out", overwrite=True)
    run(folder, "out", overwrite=True, batch=8)  # what was written by an earlier job may go

    assert len(list((folder / "out").iterdir())) == 40


@pytest.mark.parametrize("output", [".", "", "file://out.npy", f"{'x' * 300}.npy"])
def test_what_is_no_name_for_an_output_is_told(folder: Path, output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "empty").mkdir()
    monkeypatch.chdir(folder / "empty")

    with pytest.raises(RankwiseError, match=r"cannot be the name of an output|File name too long"):
        rankwise.predict(build, folder / "x.npy", output, **JOB)


class Killed(BaseException):
    """Stands for SIGKILL."""


def interrupted(monkeypatch: pytest.MonkeyPatch, where: str, *args: Any, **more: Any) -> None:
    """Killed when all rows are done: before the output is written, or before it is marked as complete."""
    with monkeypatch.context() as patch:
        patch.setattr(running, where, lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            run(*args, **more)


def precious(output: Path) -> Path:
    if not output.suffix:
        output.mkdir(exist_ok=True)
    file = output if output.suffix else output / "precious.txt"
    file.write_text("mine")
    return file


@pytest.mark.parametrize("output", ["out.jsonl", "out"])
@pytest.mark.parametrize("where", ["write_output", "write_marker"])
def test_what_appeared_after_an_interruption_is_not_replaced(
    folder: Path, output: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(monkeypatch, where, folder, output)
    theirs = precious(folder / output)

    for more in ({}, {"restart": True}, *([] if Path(output).suffix else [{"overwrite": True}])):
        with pytest.raises(UsageError, match="already there"):
            run(folder, output, **more)
        assert theirs.read_text() == "mine"
    theirs.unlink()
    if where == "write_output" and theirs != folder / output:
        theirs.parent.rmdir()
    done = run(folder, output)

    assert (done.rows, done.resumed_rows) == (40, 40)


@pytest.mark.parametrize("output", ["out.jsonl", "out"])
@pytest.mark.parametrize("more", [{}, {"overwrite": True}])
def test_an_output_that_was_put_in_place_but_not_marked_is_ones_own(
    folder: Path, output: str, more: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    if more:
        run(folder, output, batch=8)
    interrupted(monkeypatch, "write_marker", folder, output, **more)

    done = run(folder, output)

    assert done.resumed_rows == 40
    assert not [path.name for path in folder.iterdir() if path.name.endswith((".predict", ".replaced", ".unfinished"))]


def test_an_output_of_another_unfinished_job_is_not_ones_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch, "write_marker", folder, "out.jsonl", batch=8)

    with pytest.raises(UsageError, match="already there"):
        run(folder, "out.jsonl", restart=True)


def test_a_finished_folder_from_which_a_file_was_taken_is_not_done(folder: Path) -> None:
    run(folder, "out")
    (folder / "out" / "00000007.npy").unlink()

    with pytest.raises(UsageError, match="already there"):
        run(folder, "out")


def test_a_file_that_somebody_put_into_a_finished_folder_is_not_deleted(folder: Path) -> None:
    run(folder, "out")
    theirs = precious(folder / "out")

    for more in ({"overwrite": True}, {"restart": True}):
        with pytest.raises(UsageError, match="already there"):
            run(folder, "out", **more)
    assert theirs.read_text() == "mine"


@pytest.mark.parametrize("output", ["out.parquet", "out.jsonl", "out.csv"])
def test_a_kept_column_called_row_is_refused(tmp_path: Path, output: str) -> None:
    (tmp_path / "x.csv").write_text("row,x\n1,2\n")

    with pytest.raises(UsageError, match="'row' cannot be kept"):
        rankwise.predict("tests.offline.nets:build", tmp_path / "x.csv", tmp_path / output, columns=("x",), keep=("row",), **JOB)


@pytest.mark.parametrize("spelled", ["out.npy", "../{}/out.npy"])
def test_a_list_of_failed_rows_goes_with_the_output_it_was_about(folder: Path, spelled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREDICT_PAUSE_S", "0")
    monkeypatch.chdir(folder)
    x = rows(40)
    x[3, 0] = 9.0
    np.save(folder / "x.npy", x)
    rankwise.predict("tests.offline.nets:slow", folder / "x.npy", "out.npy", **JOB)
    again = rankwise.predict(
        "tests.offline.nets:slow", folder / "x.npy", spelled.format(folder.name), **{**JOB, "batch": 8, "overwrite": True}
    )
    assert (folder / "errors.jsonl").exists() and Path(again.errors).name == "errors.jsonl"

    done = run(folder, "out.npy", overwrite=True)

    assert done.errors is None
    assert not (folder / "errors.jsonl").exists()


@pytest.mark.parametrize("option", ["columns", "keep"])
def test_a_text_is_not_read_as_the_names_of_its_letters(tmp_path: Path, option: str) -> None:
    (tmp_path / "x.csv").write_text("x,id,i,d\n1,2,3,4\n")

    with pytest.raises(UsageError, match=f"{option} takes a list of names, not the text 'id'"):
        rankwise.predict("tests.offline.nets:build", tmp_path / "x.csv", tmp_path / "out.csv", **{option: "id"}, **JOB)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"weights": {"weight": 0}}, "weights must be a path"),
        ({"build": torch.nn.Linear(6, 3)}, "build is a model"),
        ({"build": None}, "build must be"),
        ({"load": np.load}, "load must be an import path"),
        ({"columns": None}, "columns takes a list"),
        ({"device": None}, "no device"),
        ({"output": None}, "a NoneType is no path"),
    ],
)
def test_what_is_of_the_wrong_kind_is_told(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        rankwise.predict(**{"build": build, "input": rows(4), "output": tmp_path / "out.npy", **JOB, **more})


def test_a_device_of_torch_and_columns_by_number_are_taken(tmp_path: Path) -> None:
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(rows(4)), torch.arange(4))

    assert rankwise.predict(build, dataset, tmp_path / "out.npy", columns=[0], device=torch.device("cpu"), **JOB).failed == 0
