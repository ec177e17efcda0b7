"""When the same command again has nothing to do, when it goes on, and when it is another job."""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rankwise
from rankwise.errors import UsageError
from rankwise.offline import running
from rankwise.offline.parts import NextPart, Results
from rankwise.offline.record_log import JournalRemoved, RecordLog
from rankwise.offline.workspace import PredictError, Workspace, folder_of
from tests.offline.inputs import WIDTH, rows, write
from tests.offline.nets import build

JOB: dict[str, Any] = {"workers": 0, "batch": 16}


class Killed(BaseException):
    pass


def times(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x * factor


def unfinished(monkeypatch: pytest.MonkeyPatch, *args: Any, **more: Any) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(running, "write_output", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            rankwise.predict(*args, **{**JOB, **more})


def shifted() -> Callable[[torch.Tensor], torch.Tensor]:
    """Code that changes between two runs."""
    shift = float(os.environ["PREDICT_SHIFT"])
    return lambda x: x + shift


@pytest.mark.parametrize("options", [{"overwrite": True}, {"restart": True}])
def test_a_finished_job_is_done_again_where_that_is_asked_for(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "npy", 20)
    args = ("tests.offline.test_identity:shifted", tmp_path / "x.npy", tmp_path / "out.npy")
    monkeypatch.setenv("PREDICT_SHIFT", "1")
    rankwise.predict(*args, **JOB)
    monkeypatch.setenv("PREDICT_SHIFT", "22")

    rankwise.predict(*args, **JOB, **options)

    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), rows(20) + 22)


@pytest.mark.parametrize("second", [list(rows(50) + 1), (row for row in rows(8))], ids=["list", "generator"])
def test_what_cannot_be_compared_is_never_taken_for_done(tmp_path: Path, second: Any) -> None:
    first = list(rows(50)) if isinstance(second, list) else (row for row in rows(3))
    rankwise.predict(build, first, tmp_path / "out.npy", **JOB)

    with pytest.raises(UsageError, match="already there"):
        rankwise.predict(build, second, tmp_path / "out.npy", **JOB)
    done = rankwise.predict(build, second, tmp_path / "out.npy", overwrite=True, **JOB)

    assert done.rows == (50 if isinstance(second, list) else 8)


def test_a_callable_is_known_by_what_it_carries(tmp_path: Path) -> None:
    write(tmp_path, "npy", 20)
    rankwise.predict(functools.partial(times, 2.0), tmp_path / "x.npy", tmp_path / "out.npy", **JOB)
    rankwise.predict(functools.partial(times, 2.0), tmp_path / "x.npy", tmp_path / "out.npy", **JOB)

    with pytest.raises(UsageError, match="already there"):
        rankwise.predict(functools.partial(times, 3.0), tmp_path / "x.npy", tmp_path / "out.npy", **JOB)


def test_a_job_of_a_model_in_memory_does_not_go_on_with_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_PART_BYTES", 1)
    first, second = build(), build()
    with torch.no_grad():
        second[2].bias.add_(1)

    def kill(done: int, *_: Any) -> None:
        if done > 16:
            raise Killed

    with pytest.raises(Killed):
        rankwise.predict(lambda: first, rows(50), tmp_path / "out.npy", on_progress=kill, **JOB)
    with pytest.raises(PredictError, match="the model has other parameters") as caught:
        rankwise.predict(lambda: second, rows(50), tmp_path / "out.npy", **JOB)
    done = rankwise.predict(lambda: first, rows(50), tmp_path / "out.npy", **JOB)

    assert caught.value.finding.code == "RW831"
    assert (done.rows, done.resumed_rows) == (50, 16)


def in_a_cell() -> Any:
    return build()


def test_what_a_notebook_runs_again_is_never_taken_for_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function of a cell has the same name when the cell was edited."""
    write(tmp_path, "npy", 20)
    notebook = types.ModuleType("__main__")
    notebook.in_a_cell = in_a_cell  # type: ignore[attr-defined]
    monkeypatch.setattr(in_a_cell, "__module__", "__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    rankwise.predict(in_a_cell, tmp_path / "x.npy", tmp_path / "out.npy", **JOB)

    with pytest.raises(UsageError, match="already there"):
        rankwise.predict(in_a_cell, tmp_path / "x.npy", tmp_path / "out.npy", **JOB)


@pytest.mark.parametrize("what", ["input", "weights"])
def test_a_folder_whose_files_changed_is_another_one(tmp_path: Path, what: str) -> None:
    write(tmp_path, "files", 6)
    torch.save(build().state_dict(), tmp_path / "last.pt")
    (tmp_path / "weights").mkdir()
    os.replace(tmp_path / "last.pt", tmp_path / "weights" / "pytorch_model.bin")
    job = {**JOB, "weights": tmp_path / "weights"}
    rankwise.predict("tests.offline.nets:build", tmp_path / "x.files", tmp_path / "out.jsonl", **job)
    changed = tmp_path / "x.files" / "00003.npy" if what == "input" else tmp_path / "weights" / "pytorch_model.bin"
    os.utime(changed, ns=(1, 1))

    with pytest.raises(UsageError, match="already there"):
        rankwise.predict("tests.offline.nets:build", tmp_path / "x.files", tmp_path / "out.jsonl", **job)


@pytest.mark.parametrize("given", [list, iter])
def test_a_dataset_with_other_first_rows_does_not_go_on_with_an_unfinished_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Any
) -> None:
    unfinished(monkeypatch, build, given(rows(50)), tmp_path / "out.npy")

    with pytest.raises(PredictError) as caught:
        rankwise.predict(build, given(rows(50) + 1), tmp_path / "out.npy", **JOB)
    done = rankwise.predict(build, given(rows(50)), tmp_path / "out.npy", **JOB)

    assert caught.value.finding.code == "RW831"
    assert done.resumed_rows == 50


class Picture:
    """Its repr is its address."""

    def __init__(self, number: float) -> None:
        self.number = number


class Pictures(torch.utils.data.Dataset[Any]):
    """Makes a sample anew whenever it is wanted."""

    def __init__(self, name: Any) -> None:
        self._name = name

    def __len__(self) -> int:
        return 50

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"picture": Picture(i / 2), "name": self._name}


def numbers_of(pictures: list[Picture], *_: Any) -> torch.Tensor:
    return torch.tensor([picture.number for picture in pictures])


def build_numbers_of() -> Any:
    return numbers_of


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("a", "b"),
        ([1, None, {"k": ("x", Picture(1))}], [1, None, {"k": ("y", Picture(1))}]),
        (np.array(["a", Picture(1)], object), np.array(["b", Picture(1)], object)),
        ({"v": torch.ones(2)}, {"v": torch.zeros(2)}),
    ],
    ids=["texts", "nested", "objects", "tensors"],
)
def test_a_dataset_of_objects_goes_on_and_is_known_by_the_rest(
    tmp_path: Path, name: Any, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished(monkeypatch, build_numbers_of, Pictures(name), tmp_path / "out.npy")

    with pytest.raises(PredictError, match="another one"):
        rankwise.predict(build_numbers_of, Pictures(other), tmp_path / "out.npy", **JOB)
    done = rankwise.predict(build_numbers_of, Pictures(name), tmp_path / "out.npy", **JOB)

    assert done.resumed_rows == 50
    assert np.load(tmp_path / "out.npy")[49] == 24.5


def test_too_many_errors_of_an_earlier_run_still_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREDICT_PAUSE_S", "0")
    x = rows(20)
    x[19, 0] = 9.0
    np.save(tmp_path / "x.npy", x)
    job = {**JOB, "max_errors": 0}
    for _ in range(2):  # the limit is passed in the last batch
        with pytest.raises(PredictError) as caught:
            rankwise.predict("tests.offline.nets:slow", tmp_path / "x.npy", tmp_path / "out.npy", **job)
        assert caught.value.finding.code == "RW833" and "row 19: ValueError: too large" in caught.value.finding.why


def test_a_journal_that_its_owner_removed_is_not_taken_over(tmp_path: Path) -> None:
    """Who waits for the lock of a job that then ends gets the lock of a file without a name."""
    path = tmp_path / "journal"
    RecordLog(path).close()
    real_open = os.open

    def late_open(*args: Any, **more: Any) -> int:
        fd = real_open(*args, **more)
        path.unlink(missing_ok=True)
        return fd

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rankwise.offline.record_log.os.open", late_open)
        with pytest.raises(JournalRemoved):
            RecordLog(path)


def test_who_waited_for_another_process_finds_the_job_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "npy", 20)
    args = ("tests.offline.nets:build", tmp_path / "x.npy", tmp_path / "out.npy")
    first = running.Workspace

    class Late(first):  # type: ignore[misc,valid-type]
        """Between our look at the output and our turn at the journal, somebody else does the whole job."""

        def __init__(self, *given: Any) -> None:
            monkeypatch.undo()
            rankwise.predict(*args, **JOB)
            super().__init__(*given)

    monkeypatch.setattr(running, "Workspace", Late)
    ran: list[int] = []
    done = rankwise.predict(*args, on_progress=lambda *_: ran.append(1), **JOB)

    assert done.rows == 20 and not ran
    assert not folder_of(tmp_path / "out.npy").exists()


@pytest.mark.parametrize(("then", "now"), [(2, 2.0), (1, True), (0.0, -0.0), (1.0, True), ("2", 2), (None, False)])
def test_a_job_is_the_same_to_the_type_and_the_last_bit(tmp_path: Path, then: Any, now: Any) -> None:
    first = Workspace(tmp_path / "out.npy", {"batch": then})
    first.add(NextPart(Results([0], {"y": np.zeros(1)}, [], 0, 1)), None)
    first.close()

    Workspace(tmp_path / "out.npy", {"batch": then}).close()
    with pytest.raises(PredictError) as caught:
        Workspace(tmp_path / "out.npy", {"batch": now})

    assert caught.value.finding.code == "RW831"
    assert f"then {then!r}, now {now!r}" in caught.value.finding.why


def test_what_is_kept_of_the_first_rows_is_compared_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """5 and 5.0 are kept as they are, so a job that began with the one does not go on with the other."""
    x = rows(40)
    for then, now in ((5, 5.0), (1, True), (0.0, -0.0)):
        datasets = [[{"x": row, "id": value} for row in x] for value in (then, now)]
        output = tmp_path / f"{then}.jsonl"
        unfinished(monkeypatch, build, datasets[0], output, columns=("x",), keep=("id",))
        with pytest.raises(PredictError, match="the first rows of the input"):
            rankwise.predict(build, datasets[1], output, columns=("x",), keep=("id",), **JOB)


@pytest.mark.parametrize("options", [{"batch": True}, {"workers": False}, {"max_errors": True}])
def test_truth_is_no_number(tmp_path: Path, options: dict[str, Any]) -> None:
    write(tmp_path, "npy", 4)
    with pytest.raises(UsageError):
        rankwise.predict(build, tmp_path / "x.npy", tmp_path / "out.npy", **{**JOB, **options})


def test_names_that_are_one_as_text_do_not_replace_each_other(tmp_path: Path) -> None:
    dataset = [{1: row, "1": row * 0, "x": row} for row in rows(3)]
    kept = [{"x": row, "note": {1: "a", "1": "b"}} for row in rows(3)]

    one = rankwise.predict(build, dataset, tmp_path / "a.jsonl", columns=("x",), **JOB)
    two = rankwise.predict(lambda: lambda x: {1: x, "1": x * 0}, rows(3), tmp_path / "b.jsonl", **{**JOB, "overwrite": True})
    with pytest.raises(UsageError, match="'note' cannot be kept"):
        rankwise.predict(build, kept, tmp_path / "c.jsonl", columns=("x",), keep=("note",), **JOB)

    assert (one.failed, two.failed) == (3, 3)


@pytest.mark.parametrize(("kind", "how", "is_refused"), [("npy", "r+b", True), ("jsonl", "r+b", True), ("jsonl", "ab", False)])
def test_an_input_that_is_written_anew_while_it_is_read_is_told(tmp_path: Path, kind: str, how: str, is_refused: bool) -> None:
    path, named = write(tmp_path, kind, 64)
    calls: list[int] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        if calls == [16]:
            content = path.read_bytes()
            with path.open(how) as file:
                file.write(content if how == "r+b" else content.splitlines(keepends=True)[-1])
            os.utime(path, ns=(1, 1))  # file systems that keep time by the tick must not hide it
        calls.append(len(x))
        return x

    def job() -> Any:
        return rankwise.predict(lambda: model, path, tmp_path / "out.jsonl", **named, **JOB)

    if is_refused:
        with pytest.raises(PredictError, match=r"RW831 .*was changed while it was read"):
            job()
        assert not (tmp_path / "out.jsonl").exists()
    else:
        assert job().rows >= 64


@pytest.mark.parametrize("what", ["input", "weights", "folder"])
def test_another_file_of_the_same_size_and_time_is_another_job(tmp_path: Path, what: str) -> None:
    """As archives and images leave them: all of one time, and two checkpoints of a model are of one size."""
    folder = tmp_path / "weights"
    folder.mkdir()

    def write_all(value: float) -> None:
        np.save(tmp_path / "x.npy", np.full((40, WIDTH), value if what == "input" else 1.0, np.float32))
        model = build()
        with torch.no_grad():
            model[2].bias.fill_(value)
        torch.save(model.state_dict(), folder / "model.pt")
        for path in (tmp_path / "x.npy", folder / "model.pt"):
            os.utime(path, (1, 1))

    def run() -> Any:
        weights = {"input": None, "weights": folder / "model.pt", "folder": folder}[what]
        rankwise.predict(build, tmp_path / "x.npy", tmp_path / "out.npy", weights=weights, **JOB)
        return np.load(tmp_path / "out.npy")

    write_all(2.0)
    first = run()
    assert np.array_equal(run(), first)
    write_all(3.0)

    with pytest.raises(UsageError, match="already there"):
        run()


LINES = "x\n" + "".join(f"{i}\n" for i in range(100))
MEANWHILE = {
    "lines are added": (LINES, lambda path: path.write_text(f"{LINES}7\n8"), True),
    "the last line is completed": (LINES[:-1], lambda path: path.write_text(f"{LINES[:-1]}999\n"), False),
    "a longer file takes its place": (LINES, lambda path: path.write_text(LINES.replace("5", "55")), False),
    "nothing": (LINES[:-1], lambda path: None, True),
}


@pytest.mark.parametrize(("content", "change", "is_fine"), MEANWHILE.values(), ids=MEANWHILE)
def test_the_rows_are_those_that_were_there_when_it_began(tmp_path: Path, content: str, change: Any, is_fine: bool) -> None:
    path = tmp_path / "x.csv"
    path.write_text(content)

    def build_changing() -> Any:
        change(path)
        return lambda x: x

    def run() -> Any:
        return rankwise.predict(build_changing, path, tmp_path / "out.npy", **JOB)

    if not is_fine:
        with pytest.raises(PredictError, match="was changed while it was read"):
            run()
        return
    run()

    assert np.load(tmp_path / "out.npy").tolist() == list(range(100))
