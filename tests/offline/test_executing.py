"""From what a batch gave to results of the input's rows."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import rankwise
from rankwise.errors import UsageError
from rankwise.offline.executing import Executor, Recipe, check_names
from rankwise.offline.parts import Results
from rankwise.offline.row_batches import Batch
from rankwise.offline.workspace import PredictError

X = np.arange(4, dtype=np.float32)


def results(does: Callable[..., Any], **batch: Any) -> Results:
    executor = Executor(Recipe(lambda: does, workers=0))
    (found,) = executor.run([Batch(10, **{"columns": {"x": X}, "length": 4, **batch})])
    return found


def test_an_output_that_only_one_half_of_a_batch_has_is_kept() -> None:
    def model(x: torch.Tensor) -> dict[str, torch.Tensor]:
        if len(x) == 4:
            raise ValueError("too many")
        return {"a": x} if bool((x < 2).all()) else {"a": x, "b": x}

    found = results(model)

    assert found.rows.tolist() == [10, 11, 12, 13]
    assert found.columns["a"].tolist() == [0, 1, 2, 3] and found.columns["b"] == [None, None, 2, 3]


@pytest.mark.parametrize(
    ("does", "kept"),
    [(lambda x: {"row": x}, {}), (lambda x: x, {"row": [1, 2, 3, 4]}), (lambda x: {"id": x}, {"id": [1, 2, 3, 4]})],
)
def test_columns_that_could_not_be_told_apart_are_refused_by_the_first_batch(does: Any, kept: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"'row'|'id'"):
        results(does, kept=kept)


def test_names_are_known_before_anything_runs() -> None:
    check_names(["id", "Row"])
    with pytest.raises(UsageError, match="'row'"):
        check_names(["id", "row"])


def test_kept_columns_become_what_can_be_stored() -> None:
    kept = {
        "dates": [datetime.date(2024, 2, 29)] * 4,
        "tensors": [torch.ones(i) for i in range(4)],
        "arrow": pa.array([b"a", None, b"b", b"c"]),
    }

    found = results(lambda x: x, kept=kept, broken={1: "bad"})

    assert found.columns["dates"] == ["2024-02-29"] * 3
    assert [row.shape for row in found.columns["tensors"]] == [(0,), (2,), (3,)]
    assert found.columns["arrow"].to_pylist() == [b"a", b"b", b"c"]


def test_what_cannot_be_stored_is_told_with_its_column() -> None:
    with pytest.raises(UsageError, match="'things'") as caught:
        results(lambda x: x, kept={"things": [object()] * 4})

    assert "object" in caught.value.finding.why


@pytest.mark.parametrize(("columns", "kept", "name"), [({"__file__": ["a"] * 4}, "file", "file"), ({"x": X}, "file", "")])
def test_only_a_folders_own_names_name_files(columns: dict[str, Any], kept: str, name: str) -> None:
    def load(*_: Any) -> Any:
        return torch.zeros(4)

    executor = Executor(Recipe(lambda: load, load="builtins:str", workers=0))
    (found,) = executor.run([Batch(0, columns, 4, kept={kept: list("abcd")})])

    assert found.file_column == name


def ragged() -> Callable[[torch.Tensor], Any]:
    return lambda x: {"rows": [torch.ones(int(i), dtype=torch.int32) for i in x], "found": [{"boxes": torch.ones(1, 4)} for _ in x]}


def test_outputs_of_any_kind_come_from_a_worker(tmp_path: Any) -> None:
    executor = Executor(Recipe("tests.offline.test_executing:ragged", workers=1, device="cpu"))
    try:
        (found,) = executor.run([Batch(0, {"x": X}, 4)])
    finally:
        executor.close()

    assert [(row.dtype, row.shape) for row in found.columns["rows"]] == [(np.int32, (i,)) for i in range(4)]
    assert all(row.flags.owndata for row in found.columns["rows"])
    assert found.columns["found"][0] == {"boxes": [[1.0] * 4]}


@pytest.mark.parametrize("bad", [[3], [0, 6]])
def test_a_row_after_which_nothing_runs_on_the_gpu_costs_itself(tmp_path: Path, bad: list[int]) -> None:
    x = np.arange(8, dtype=np.float32).reshape(8, 1)
    x[bad] = 99
    np.save(tmp_path / "x.npy", x)

    done = rankwise.predict("tests.offline.nets:breaking_gpu", tmp_path / "x.npy", tmp_path / "y.npy", workers=1, batch=4)

    y = np.load(tmp_path / "y.npy")
    assert np.isnan(y[bad]).all() and np.array_equal(np.delete(y, bad, 0), np.delete(x, bad, 0) * 2)
    assert done.failed == len(bad)


def test_in_this_process_the_job_ends_there_and_goes_on_with_a_worker(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[1], [2], [99], [3]], np.float32))
    job: dict[str, Any] = {"input": tmp_path / "x.npy", "output": tmp_path / "y.npy", "batch": 1}

    with pytest.raises(PredictError, match="nothing more runs on the GPU in this process") as caught:
        rankwise.predict("tests.offline.nets:breaking_gpu", **job, workers=0)
    assert "device-side assert" in caught.value.finding.why and "--workers 1" in caught.value.finding.next[0]

    rankwise.predict("tests.offline.nets:breaking_gpu", **job, workers=1)
    assert np.load(tmp_path / "y.npy").ravel().tolist()[::3] == [2, 6]


@pytest.mark.live
def test_a_script_without_a_main_guard_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import numpy, rankwise\n"
        "def build():\n    import torch\n    return torch.nn.Identity()\n"
        "rankwise.predict(build, numpy.ones((3, 2)), 'out.npy', workers=1)\n"
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100)

    assert "RW810" in done.stderr and "RW832" not in done.stderr
