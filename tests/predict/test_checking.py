"""What a job must not replace, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rankwise
from rankwise.errors import UsageError
from tests.predict.inputs import rows, write
from tests.predict.nets import build

JOB: dict[str, Any] = {"workers": 0, "batch": 16}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "npy", 40)
    torch.save(build().state_dict(), tmp_path / "wt.pt")
    (tmp_path / "wt.pt").rename(tmp_path / "wt.npy")  # whatever it is called
    return tmp_path


def run(folder: Path, output: str, **more: Any) -> Any:
    return rankwise.predict("tests.predict.nets:build", folder / "x.npy", folder / output, **{**JOB, **more})


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


@pytest.mark.parametrize("output", ["out.parquet", "out.jsonl", "out.csv"])
def test_a_kept_column_called_row_is_refused(tmp_path: Path, output: str) -> None:
    (tmp_path / "x.csv").write_text("row,x\n1,2\n")

    with pytest.raises(UsageError, match="'row' cannot be kept"):
        rankwise.predict("tests.predict.nets:build", tmp_path / "x.csv", tmp_path / output, columns=("x",), keep=("row",), **JOB)


def test_a_list_of_failed_rows_goes_with_the_output_it_was_about(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREDICT_PAUSE_S", "0")
    x = rows(40)
    x[3, 0] = 9.0
    np.save(folder / "x.npy", x)
    rankwise.predict("tests.predict.nets:slow", folder / "x.npy", folder / "out.npy", **JOB)
    assert (folder / "errors.jsonl").exists()

    done = run(folder, "out.npy", overwrite=True)

    assert done.errors is None
    assert not (folder / "errors.jsonl").exists()
