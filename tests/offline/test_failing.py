"""A model that takes none of the rows is told after some of them, not after all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rankwise
from rankwise.cli.main import main
from rankwise.offline.workspace import PredictError
from tests.offline.inputs import WIDTH

COUNT = 5000


class Picky:
    """Counts its calls, and takes only rows whose first number is at least `least`."""

    def __init__(self, least: float = torch.inf) -> None:
        self.calls, self._least = 0, least

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if bool((x[:, 0] < self._least).any()):
            raise ValueError("too small")
        return x * 2


def job(folder: Path, model: Any, **options: Any) -> Any:
    np.save(folder / "x.npy", np.arange(COUNT * 2, dtype=np.float32).reshape(COUNT, 2))
    return rankwise.predict(lambda: model, folder / "x.npy", folder / "out.npy", **{"workers": 0, **options})


@pytest.mark.parametrize("batch", [1, 7, 256, COUNT, "auto"])
def test_the_job_stops_when_the_first_rows_all_fail_alike(tmp_path: Path, batch: int | str) -> None:
    model = Picky()

    with pytest.raises(PredictError) as caught:
        job(tmp_path, model, batch=batch)

    found = caught.value.finding
    assert found.code == "RW833"
    assert "rows all fail alike" in found.summary and "row 0: ValueError: too small" in found.why
    assert any("--max-errors" in step for step in found.next)
    assert model.calls < 400
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


@pytest.mark.parametrize("batch", [7, 256])
def test_rows_that_fail_differently_are_each_looked_at(tmp_path: Path, batch: int) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        if bool((x[:, 0] < 200).any()):
            raise ValueError("odd") if int(x[0, 0]) % 4 else TypeError("even")
        return x

    done = job(tmp_path, model, batch=batch)

    assert (done.rows, done.failed) == (COUNT, 100)


@pytest.mark.parametrize("batch", [4, 1000])
def test_rows_that_cannot_be_read_do_not_hide_that_the_model_takes_none(tmp_path: Path, batch: int) -> None:
    (tmp_path / "x.csv").write_text("a,b\n" + "?,1\n1,1\n2,2\n" * 1000)
    model = Picky()
    with pytest.raises(PredictError, match="rows all fail alike") as caught:
        rankwise.predict(lambda: model, tmp_path / "x.csv", tmp_path / "out.csv", workers=0, batch=batch)

    assert "row 1: ValueError: too small" in caught.value.finding.why and model.calls < 400


def test_whoever_says_how_many_may_fail_gets_all_of_them(tmp_path: Path) -> None:
    done = job(tmp_path, Picky(least=600.0), batch=256, max_errors=COUNT)

    assert (done.rows, done.failed) == (COUNT, 300)


def test_few_bad_rows_at_the_beginning_cost_themselves(tmp_path: Path) -> None:
    model = Picky(least=12.0)

    done = job(tmp_path, model)

    assert (done.failed, done.rows) == (6, COUNT)
    assert done.batch > 1, "the speed was found in spite of the first rows"


@pytest.mark.live
def test_workers_stop_too_and_a_batch_that_gave_up_is_looked_at_when_others_work(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.full((COUNT, WIDTH), 3.0, np.float32))
    with pytest.raises(PredictError, match="all fail alike"):
        rankwise.predict("tests.offline.nets:slow", tmp_path / "x.npy", tmp_path / "out.npy", workers=2, batch=64)
    x = np.zeros((400, WIDTH), np.float32)
    x[100:200] = 3.0
    np.save(tmp_path / "y.npy", x)

    done = rankwise.predict("tests.offline.nets:slow", tmp_path / "y.npy", tmp_path / "out.npy", workers=2, batch=100)

    assert (done.rows, done.failed) == (400, 100)


@pytest.mark.live
def test_rows_that_each_end_their_worker_stop_the_job(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.full((64, WIDTH), 3.0, np.float32))

    with pytest.raises(PredictError, match="the first 4 rows all fail alike"):
        rankwise.predict("tests.offline.nets:deadly", tmp_path / "x.npy", tmp_path / "out.npy", workers=1, batch=16)


@pytest.mark.parametrize(("count", "words"), [(9, []), (COUNT, []), (COUNT, ["--max-errors", "3"]), (40, ["--max-errors", "100"])])
def test_the_exit_code_is_1_when_no_row_worked_or_too_many_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int, words: list[str]
) -> None:
    np.save(tmp_path / "wide.npy", np.zeros((count, WIDTH + 1), np.float32))
    paths = ["--input", str(tmp_path / "wide.npy"), "--output", str(tmp_path / "out.npy")]

    code = main(["predict", "--build", "tests.offline.nets:build", "--workers", "0", "--batch", "8", *paths, *words])

    assert code == 1
    assert capsys.readouterr().err.startswith("RW833")


def test_some_failed_rows_are_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.zeros((50, WIDTH), np.float32)
    x[3] = 3.0
    np.save(tmp_path / "x.npy", x)
    paths = ["--input", str(tmp_path / "x.npy"), "--output", str(tmp_path / "out.npy"), "--json"]

    assert main(["predict", "--build", "tests.offline.nets:slow", "--workers", "0", *paths]) == 0
    assert json.loads(capsys.readouterr().out)["failed"] == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_a_model_that_exits_costs_its_row_and_does_not_end_the_job(tmp_path: Path, workers: int) -> None:
    """With exit code 0, the command would look as if it had done its work."""
    np.save(tmp_path / "x.npy", np.arange(40, dtype=np.float32))

    done = rankwise.predict("tests.offline.nets:quitting", tmp_path / "x.npy", tmp_path / "out.npy", workers=workers, batch=8)

    assert (done.rows, done.failed) == (40, 1)
    (error,) = map(json.loads, Path(done.errors).read_text().splitlines())
    assert (error["row"], error["error"]) == (7, "SystemExit")


def test_a_build_that_exits_is_told(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(4, dtype=np.float32))

    with pytest.raises(rankwise.RankwiseError) as caught:
        rankwise.predict("tests.offline.nets:exit_at_once", tmp_path / "x.npy", tmp_path / "out.npy", workers=0)

    assert "SystemExit" in str(caught.value)
