"""Jobs, in this process: right results, failed rows set aside, and a crash at any write that costs nothing but time."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import rankwise
from rankwise.errors import UsageError
from rankwise.offline import parts, record_log, running
from rankwise.offline.sizing import BatchSize
from rankwise.offline.workspace import PredictError, Workspace, folder_of
from tests.families import mostly_live
from tests.offline import nets
from tests.offline.inputs import KINDS, rows, write
from tests.offline.nets import build

COUNT = 500
JOB = {"workers": 0, "batch": 16}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def expected(x: np.ndarray, size: int = 16) -> np.ndarray:
    with torch.inference_mode():
        return np.concatenate([build()(torch.from_numpy(x[i : i + size])).numpy() for i in range(0, len(x), size)])


def run(folder: Path, output: str = "out.npy", kind: str = "npy", model: str = "build", count: int = COUNT, **options: Any) -> Any:
    source = folder / f"x.{kind}"
    named = {"columns": ("x",), "keep": ("id",)} if kind in ("parquet", "jsonl") else {}
    chosen = dict(named if source.exists() else write(folder, kind, count)[1])
    if output.endswith(".npy"):  # which has no place for it
        chosen.pop("keep", None)
    return rankwise.predict(f"tests.offline.nets:{model}", source, folder / output, **{**chosen, **JOB, **options})


@pytest.mark.parametrize("kind", KINDS)
def test_every_input_gives_the_same_results(tmp_path: Path, kind: str) -> None:
    done = run(tmp_path, "out.parquet", kind)

    table = pq.read_table(tmp_path / "out.parquet")
    assert (done.rows, done.failed, done.batch) == (COUNT, 0, 16)
    assert table["row"].to_pylist() == list(range(COUNT))
    np.testing.assert_array_equal(np.array(table["output"].to_pylist(), np.float32), expected(rows(COUNT)))
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith((".predict", ".unfinished"))] == []


def test_a_ddp_checkpoint_goes_straight_in(tmp_path: Path) -> None:
    model = torch.nn.DataParallel(build())
    with torch.no_grad():
        model.module[0].weight.mul_(2)
    torch.save({"model": model.state_dict()}, tmp_path / "last.pt")

    run(tmp_path, weights=tmp_path / "last.pt")

    with torch.inference_mode():
        wanted = model.module(torch.from_numpy(rows(COUNT))).numpy()
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), wanted, atol=1e-6)


@pytest.mark.parametrize("is_link", [True, False])
def test_a_worker_that_starts_later_has_the_weights_of_the_first_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_link: bool
) -> None:
    monkeypatch.setenv("PREDICT_SWAP", str(tmp_path))
    first, second = nets.Swapping(), nets.Swapping()
    torch.nn.init.ones_(second.net[0].weight)
    for name, model in (("first", first), ("second", second)):
        torch.save(model.state_dict(), tmp_path / f"{name}.pt")
    for name, target in (("last.pt", "first.pt"), ("new.pt", "second.pt")):
        (tmp_path / name).symlink_to(target) if is_link else (tmp_path / target).rename(tmp_path / name)

    if not is_link:
        with pytest.raises(rankwise.RankwiseError, match=r"RW831 .*last.pt was changed while the job ran"):
            run(tmp_path, model="swapping", weights=tmp_path / "last.pt", workers=1)
        return
    run(tmp_path, model="swapping", weights=tmp_path / "last.pt", workers=1)
    with torch.inference_mode():
        np.testing.assert_allclose(np.load(tmp_path / "out.npy"), first.net(torch.from_numpy(rows(COUNT))).numpy(), atol=1e-6)


def test_a_program_needs_no_code(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch")
    program = torch.export.export(build(), (torch.zeros(4, 6),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "net.pt2")
    write(tmp_path, "npy", COUNT)

    rankwise.predict(str(tmp_path / "net.pt2"), tmp_path / "x.npy", tmp_path / "out.npy", **JOB)

    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected(rows(COUNT)), atol=1e-6)


def test_several_outputs_become_columns(tmp_path: Path) -> None:
    run(tmp_path, "out.parquet", model="several")

    table = pq.read_table(tmp_path / "out.parquet")
    assert table.schema.names == ["row", "score", "label"]
    assert table["label"].to_pylist() == expected(rows(COUNT)).argmax(1).tolist()


def test_rows_that_fail_are_listed_and_cost_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREDICT_PAUSE_S", "0")
    bad = np.flatnonzero(rows(COUNT)[:, 0] > 2.5).tolist()

    done = run(tmp_path, "out.parquet", model="slow")

    lines = [json.loads(line) for line in (tmp_path / "errors.jsonl").read_text().splitlines()]
    table = pq.read_table(tmp_path / "out.parquet")
    assert bad and done.failed == len(bad)
    assert [(line["row"], line["error"], line["message"]) for line in lines] == [(row, "ValueError", "too large") for row in bad]
    assert table["row"].to_pylist() == [row for row in range(COUNT) if row not in bad]
    np.testing.assert_allclose(np.array(table["output"].to_pylist()), np.delete(expected(rows(COUNT)), bad, axis=0), atol=1e-6)


def test_too_many_errors_stop_the_job_and_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREDICT_PAUSE_S", "0")
    with pytest.raises(PredictError) as caught:
        run(tmp_path, model="slow", max_errors=0)
    done = run(tmp_path, model="slow", max_errors=100)

    assert caught.value.finding.code == "RW833"
    assert "too large" in caught.value.finding.why
    assert 0 < done.resumed_rows < COUNT


def test_inputs_of_one_column_each_and_texts(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"a": i, "b": i / 2, "t": f"n{i}"}) + "\n" for i in range(40)))
    job = {**JOB, "columns": ("a", "b")}
    rankwise.predict("tests.offline.nets:build_two", tmp_path / "x.jsonl", tmp_path / "two.jsonl", stack=False, **job)
    rankwise.predict("tests.offline.nets:build_shout", tmp_path / "x.jsonl", tmp_path / "shout.jsonl", columns=("t",), keep=("a",), **JOB)

    two = [json.loads(line) for line in (tmp_path / "two.jsonl").read_text().splitlines()]
    shout = [json.loads(line) for line in (tmp_path / "shout.jsonl").read_text().splitlines()]
    assert two[4] == {"row": 4, "output": 42.0}
    assert shout[7] == {"row": 7, "a": 7, "output": "N7"}


def test_a_folder_with_a_loader_of_ones_own(tmp_path: Path) -> None:
    write(tmp_path, "files", 20)

    rankwise.predict("tests.offline.nets:build", tmp_path / "x.files", tmp_path / "out", load="tests.offline.nets:load_doubled", **JOB)

    np.testing.assert_allclose(np.load(tmp_path / "out" / "00007.npy.npy"), expected(rows(20) * 2)[7], atol=1e-6)


def test_the_batch_size_is_found_by_trying(tmp_path: Path) -> None:
    done = run(tmp_path, model="hungry", batch="auto")

    assert done.batch in (4, 16) and done.failed == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected(rows(COUNT), done.batch))


def test_a_resumed_job_keeps_the_batch_size_that_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_PART_BYTES", 600)
    monkeypatch.setattr(running, "find_size", lambda measure: BatchSize(7, "tried before"))
    with monkeypatch.context() as patch:
        patch.setattr(running, "write_output", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            run(tmp_path, batch="auto")
    (folder_of(tmp_path / "out.npy") / "part-00000003").unlink()
    monkeypatch.setattr(running, "find_size", lambda measure: BatchSize(100, "tried again"))

    done = run(tmp_path, batch="auto")

    assert 0 < done.resumed_rows < COUNT
    assert (done.batch, done.batch_why) == (7, "tried before")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected(rows(COUNT), 7))


def test_rows_that_fail_in_a_trial_are_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREDICT_PAUSE_S", "0.001")
    bad = np.flatnonzero(rows(COUNT)[:, 0] > 2.5).tolist()
    seen: list[int] = []

    done = run(tmp_path, "out.parquet", model="slow", batch="auto", on_progress=lambda done, failed, total: seen.append(done))

    lines = [json.loads(line) for line in (tmp_path / "errors.jsonl").read_text().splitlines()]
    assert [line["row"] for line in lines] == bad and done.failed == len(bad)
    assert seen[0] == done.batch and "rows/s" in done.batch_why


def test_rows_that_nobody_has_counted_are_estimated_for_those_who_wait(tmp_path: Path) -> None:
    totals: list[Any] = []

    run(tmp_path, "out.parquet", "jsonl", on_progress=lambda done, failed, total: totals.append(total))

    assert 0.8 * COUNT < totals[0] < 1.2 * COUNT and totals[-1] == COUNT


def test_any_dataset_will_do(tmp_path: Path) -> None:
    x = rows(50)

    class Pairs(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 50

        def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
            return torch.from_numpy(x[i]), i * i

    rankwise.predict(build, Pairs(), tmp_path / "map.parquet", columns=("0",), keep=("1",), **JOB)
    rankwise.predict(build, (row for row in x), tmp_path / "stream.npy", **JOB)

    table = pq.read_table(tmp_path / "map.parquet")
    assert table["1"].to_pylist() == [i * i for i in range(50)]
    np.testing.assert_array_equal(np.array(table["output"].to_pylist(), np.float32), expected(x))
    np.testing.assert_array_equal(np.load(tmp_path / "stream.npy"), expected(x))


def test_the_same_command_again_has_nothing_to_do(tmp_path: Path) -> None:
    run(tmp_path, "out.parquet")
    before = (tmp_path / "out.parquet").stat()

    again = run(tmp_path, "out.parquet", model="build")

    assert (again.rows, again.resumed_rows) == (COUNT, COUNT)
    assert (tmp_path / "out.parquet").stat().st_mtime_ns == before.st_mtime_ns


def test_an_output_of_somebody_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out.npy").write_text("mine")

    with pytest.raises(UsageError, match="already there"):
        run(tmp_path)
    assert (tmp_path / "out.npy").read_text() == "mine"
    run(tmp_path, overwrite=True)

    assert len(np.load(tmp_path / "out.npy")) == COUNT


def test_the_list_of_failed_rows_does_not_replace_another_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREDICT_PAUSE_S", "0")
    first = run(tmp_path, "a.npy", model="slow")
    listed = (tmp_path / "errors.jsonl").read_text()
    second = run(tmp_path, "b.npy", model="slow", batch=8)

    assert (Path(first.errors).name, Path(second.errors).name) == ("errors.jsonl", "b.npy.errors.jsonl")
    assert (tmp_path / "errors.jsonl").read_text() == listed == (tmp_path / "b.npy.errors.jsonl").read_text()


def test_jobs_that_end_together_keep_their_own_lists_of_failed_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREDICT_PAUSE_S", "0")
    results, others = Workspace.results, []

    def while_another_ends(space: Workspace) -> Any:
        """The second job runs from beginning to end while the first one writes its list."""
        for each in results(space):
            yield each
            if space.output.name == "a.npy" and not others:
                others.append("begun")
                others[0] = run(tmp_path, "b.npy", model="slow", batch=8)

    monkeypatch.setattr(Workspace, "results", while_another_ends)

    first = run(tmp_path, "a.npy", model="slow")

    assert (Path(first.errors).name, Path(others[0].errors).name) == ("a.npy.errors.jsonl", "errors.jsonl")
    assert (tmp_path / "errors.jsonl").read_text() == (tmp_path / "a.npy.errors.jsonl").read_text() != ""
    assert not list(tmp_path.glob(".*unfinished*"))


def test_a_list_of_failed_rows_is_found_again_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREDICT_PAUSE_S", "0")
    with monkeypatch.context() as patch:
        patch.setattr(running, "write_output", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            run(tmp_path, model="slow")

    assert Path(run(tmp_path, model="slow").errors).name == "errors.jsonl"


def test_a_job_that_never_began_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        run(tmp_path, model="nothing_of_that_name")

    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


class Killed(BaseException):
    """Stands for SIGKILL: nothing may catch it and go on."""


def crashing_at(number: int, patch: pytest.MonkeyPatch, torn: bool) -> Callable[[], int]:
    """The process "dies" at its n-th write, flush or rename; a torn journal write leaves half of its bytes."""
    count = 0
    pwrite, fsync, replace = os.pwrite, os.fsync, Path.replace

    def step() -> bool:
        nonlocal count
        count += 1
        return count == number

    def dying_pwrite(file: int, data: bytes, at: int) -> int:
        if step():
            pwrite(file, data[: len(data) // 2 if torn else 0], at)
            raise Killed
        return pwrite(file, data, at)

    def dying_fsync(file: int) -> None:
        if step():
            raise Killed
        fsync(file)

    def dying_replace(self: Path, target: Any) -> Path:
        if step():
            if torn:
                replace(self, target)
            raise Killed
        return replace(self, target)

    patch.setattr(record_log.os, "pwrite", dying_pwrite)
    patch.setattr(os, "fsync", dying_fsync)
    patch.setattr(Path, "replace", dying_replace)
    patch.setattr(parts.Path, "unlink", lambda self, missing_ok=False: None)  # a dead process cleans nothing up
    return lambda: count


@pytest.mark.parametrize("torn", mostly_live([True, False]))
@pytest.mark.parametrize(("kind", "output"), [("npy", "out.parquet"), ("parquet", "out.jsonl"), ("jsonl", "out.npy")])
def test_a_crash_at_any_write_costs_nothing_but_time(
    tmp_path: Path, kind: str, output: str, torn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_PART_BYTES", 600)  # a part every few batches
    (tmp_path / "whole").mkdir()
    run(tmp_path / "whole", output, kind, count=200)
    wanted = (tmp_path / "whole" / output).read_bytes()
    crashed = resumed = 0
    number = 0
    while True:
        number += 1
        folder = tmp_path / f"crash-{number}"
        folder.mkdir()
        with monkeypatch.context() as patch:
            steps = crashing_at(number, patch, torn)
            try:
                run(folder, output, kind, count=200)
            except Killed:
                crashed += 1
        done = run(folder, output, kind)
        assert (folder / output).read_bytes() == wanted, f"after a crash at step {number}"
        assert not folder_of(folder / output).exists()
        resumed += done.resumed_rows > 0
        if steps() < number:
            break
        number += number // 8  # every step at first, then fewer
    assert crashed > 8 and resumed > 4


def test_parts_that_were_lost_or_changed_are_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_PART_BYTES", 600)
    monkeypatch.setattr(running, "write_output", lambda *_: (_ for _ in ()).throw(Killed()))
    with pytest.raises(Killed):
        run(tmp_path)
    monkeypatch.undo()
    space = folder_of(tmp_path / "out.npy")
    damaged = bytearray((space / "part-00000003").read_bytes())
    damaged[-70] ^= 4
    (space / "part-00000003").write_bytes(damaged)
    (space / "part-00000005").unlink()

    done = run(tmp_path)

    assert 0 < done.resumed_rows < COUNT
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected(rows(COUNT)))


def test_a_full_disk_stops_it_and_the_same_command_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_PART_BYTES", 600)
    (tmp_path / "whole").mkdir()
    run(tmp_path / "whole", "out.parquet")
    written = 0

    def full(path: Path, results: Any) -> dict[str, int]:
        nonlocal written
        written += 1
        if written == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return parts.write_part(path, results)

    (tmp_path / "full").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("rankwise.offline.workspace.write_part", full)
        with pytest.raises(PredictError) as caught:
            run(tmp_path / "full", "out.parquet")
    done = run(tmp_path / "full", "out.parquet")

    assert caught.value.finding.code == "RW741"
    assert "disk is full" in caught.value.finding.summary
    assert 0 < done.resumed_rows < COUNT
    assert (tmp_path / "full" / "out.parquet").read_bytes() == (tmp_path / "whole" / "out.parquet").read_bytes()


def test_another_job_does_not_go_on_with_this_ones_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(running, "write_output", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            run(tmp_path)
    np.save(tmp_path / "x.npy", rows(COUNT) + 1)  # the input has changed

    with pytest.raises(PredictError) as caught:
        run(tmp_path)
    done = run(tmp_path, restart=True)

    assert caught.value.finding.code == "RW831"
    assert "input" in caught.value.finding.why
    assert done.resumed_rows == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected(rows(COUNT) + 1))


def test_two_at_once_are_not_let_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_log, "_PATIENCE_S", 0.1)

    def again(*_: Any) -> None:
        with pytest.raises(PredictError) as caught:
            run(tmp_path)
        assert caught.value.finding.code == "RW832"
        raise Killed

    with pytest.raises(Killed):
        run(tmp_path, on_progress=again)


@pytest.mark.parametrize(
    "wrong",
    [{"batch": 0}, {"batch": "many"}, {"workers": -1}, {"output": "out.xlsx"}, {"output": "gone/out.npy"}, {"weights": "gone.pt"}],
    ids=str,
)
def test_wrong_usage_is_told_before_anything_starts(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        run(tmp_path, **wrong)

    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
@pytest.mark.parametrize("batch", ["auto", 16])
@pytest.mark.parametrize("is_killed", [False, True])
def test_the_first_fraction_of_a_column_comes_late(
    tmp_path: Path, kind: str, batch: Any, is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is as if it had come first: x in row 250 of 300 and y in row 280, when the rows before were run with whole numbers."""
    x, y = np.arange(300.0), np.arange(300.0)
    x[250] += 0.5
    y[280] += 0.5
    with (tmp_path / f"x.{kind}").open("w") as file:
        file.write("x,y\n" if kind == "csv" else "")
        for a, b in zip(x, y):
            file.write(f"{a:g},{b:g}\n" if kind == "csv" else f'{{"x": {a:g}, "y": {b:g}}}\n')
    monkeypatch.setattr(running, "_PART_BYTES", 600)
    given = {"columns": ("x", "y"), "keep": (), "stack": False, "batch": batch, "model": "halved"}
    if is_killed:
        with monkeypatch.context() as patch:
            patch.setattr(running, "write_output", lambda *_: (_ for _ in ()).throw(Killed()))
            with pytest.raises(Killed):
                run(tmp_path, "out.parquet", kind, **given)
        (folder_of(tmp_path / "out.parquet") / "part-00000002").unlink(missing_ok=True)

    done = run(tmp_path, "out.parquet", kind, **given)

    table = pq.read_table(tmp_path / "out.parquet")
    assert (done.rows, done.failed, table["row"].to_pylist()) == (300, 0, list(range(300)))
    assert table["output"].to_pylist() == (x / 2 + y / 2).tolist()


@pytest.mark.parametrize("kind", ["npy", "safetensors", "jsonl"])
def test_a_later_batch_that_does_not_fit_is_told_before_the_rest_has_run(tmp_path: Path, kind: str) -> None:
    seen: list[int] = []

    def as_wide_as_its_longest(texts: list[str]) -> torch.Tensor:
        seen.extend(map(len, texts))
        return torch.zeros(len(texts), max(map(len, texts)))

    texts = ["a"] * 8 + ["bb"] * 8 + ["a"] * 80
    job = {"input": texts, "output": tmp_path / f"out.{kind}", "workers": 0, "batch": 4}
    if kind == "jsonl":
        assert rankwise.predict(lambda: as_wide_as_its_longest, **job).rows == len(texts)
        return
    with pytest.raises(PredictError, match="of row 8 is float32") as caught:
        rankwise.predict(lambda: as_wide_as_its_longest, **job)

    assert caught.value.finding.code == "RW834" and len(seen) < 20


@pytest.mark.parametrize("missing", [None, [1, 2, 3]])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_row_is_of_its_columns_type_whatever_is_missing_beside_it(tmp_path: Path, missing: Any, workers: int) -> None:
    """A missing row, or one of another length, makes a list of the column."""
    good, kind = (200, pa.uint8()) if missing is None else ([200], pa.list_(pa.uint8()))
    table = pa.table({"x": pa.array([good] * 5 + [missing, good, good], kind)})
    pq.write_table(table, tmp_path / "x.parquet")

    done = rankwise.predict("tests.offline.nets:doubling", tmp_path / "x.parquet", tmp_path / "y.parquet", workers=workers, batch=4)

    found = pq.read_table(tmp_path / "y.parquet")["output"].to_pylist()
    assert done.failed == (missing is None)
    assert found[:5] == [144 if missing is None else [144]] * 5 and found[-1] == found[0]
