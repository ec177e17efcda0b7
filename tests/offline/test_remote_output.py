"""Outputs elsewhere: the bytes that a disk would get, also when the job is interrupted and another machine goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest

import rankwise
from rankwise.errors import RankwiseError, UsageError
from rankwise.offline import running
from rankwise.offline.addresses import Address
from rankwise.offline.remote_output import RemoteOutput
from tests.offline.inputs import write

JOB: dict[str, Any] = {"columns": ["x"], "keep": ["id"], "workers": 0, "batch": 16}
COUNT = 200
OUT = "memory://data/out.parquet"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PREDICT_PAUSE_S", "0")
    monkeypatch.setattr(running, "_PART_S", 0.0)
    write(tmp_path, "parquet", COUNT)
    yield tmp_path
    assert not list((tmp_path / "cache").rglob("part-*")), "parts are left on this machine"


def run(folder: Path, output: Any, **more: Any) -> Any:
    return rankwise.predict("tests.offline.nets:slow", folder / "x.parquet", output, **{**JOB, **more})


def interrupted(folder: Path, after: int, **more: Any) -> None:
    """Stopped when so many rows are done, as by a full disk."""

    def stop(done: int, failed: int, total: int | None) -> None:
        if done > after:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        run(folder, OUT, on_progress=stop, **more)


def test_output_and_failed_rows_have_the_bytes_of_a_file_here(folder: Path, memory: fsspec.AbstractFileSystem) -> None:
    here = run(folder, folder / "out.parquet")
    there = run(folder, OUT)

    assert memory.cat("/data/out.parquet") == (folder / "out.parquet").read_bytes()
    assert there.output == OUT and there.errors == "memory://data/out.parquet.errors.jsonl" and there.failed == here.failed > 0
    assert memory.cat("/data/out.parquet.errors.jsonl") == Path(here.errors).read_bytes()
    assert sorted(path["name"] for path in memory.ls("/data")) == [
        "/data/.out.parquet.predicted",
        "/data/out.parquet",
        "/data/out.parquet.errors.jsonl",
    ]
    assert run(folder, OUT) == replace(there, resumed_rows=there.rows)  # nothing to do


@pytest.mark.parametrize("is_other_machine", [False, True])
def test_an_interrupted_job_goes_on(
    folder: Path,
    memory: fsspec.AbstractFileSystem,
    monkeypatch: pytest.MonkeyPatch,
    is_other_machine: bool,
) -> None:
    run(folder, folder / "out.parquet")
    interrupted(folder, 100)
    assert memory.exists("/data/.out.parquet.predict/journal") and not memory.exists("/data/out.parquet")
    if is_other_machine:
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "elsewhere"))
    done = run(folder, OUT)

    assert done.resumed_rows == 96 and memory.cat("/data/out.parquet") == (folder / "out.parquet").read_bytes()
    assert not memory.exists("/data/.out.parquet.predict")
    if is_other_machine:  # whose parts lie there until the same command is given there again
        assert list((folder / "cache").rglob("part-*"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        run(folder, OUT, overwrite=True)


def test_a_part_that_is_not_what_was_written_is_computed_again(folder: Path, memory: fsspec.AbstractFileSystem) -> None:
    run(folder, folder / "out.parquet")
    interrupted(folder, 100)
    for part in (folder / "cache").rglob("part-*"):
        part.unlink()
    memory.pipe("/data/.out.parquet.predict/part-00000003", b"of another run")
    done = run(folder, OUT)

    assert done.resumed_rows == 3 * 16 and memory.cat("/data/out.parquet") == (folder / "out.parquet").read_bytes()


@pytest.mark.parametrize("killed_at", ["_write_marker", "_copy_there", "_remove_there"])
def test_killed_while_it_is_put_there_the_next_run_knows_it(
    folder: Path,
    memory: fsspec.AbstractFileSystem,
    monkeypatch: pytest.MonkeyPatch,
    killed_at: str,
) -> None:
    original = RemoteOutput.__dict__[killed_at]
    is_placing: list[bool] = []

    def begin(self: RemoteOutput, *given: Any) -> Any:
        is_placing.append(True)
        return place(self, *given)

    def killed(self: RemoteOutput, *given: Any) -> None:
        original(self, *given)
        if is_placing:
            raise KeyboardInterrupt

    place = RemoteOutput.place
    with monkeypatch.context() as patched:
        patched.setattr(RemoteOutput, "place", begin)
        patched.setattr(RemoteOutput, killed_at, killed)
        with pytest.raises(KeyboardInterrupt):
            run(folder, OUT)
    assert run(folder, OUT).rows == COUNT
    run(folder, folder / "out.parquet")
    assert memory.cat("/data/out.parquet") == (folder / "out.parquet").read_bytes()


def test_two_machines_do_not_mix_what_they_put_there(
    folder: Path, memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = RemoteOutput(Address(OUT)), RemoteOutput(Address(OUT))
    for name in ("one", "two"):
        (folder / name).write_text(name)
    look = one._exists

    def meanwhile(path: str) -> bool:
        two._copy_there(folder / "two", two.address.beside("two"))
        return look(path)

    monkeypatch.setattr(one, "_exists", meanwhile)  # between the upload and its final name
    one._copy_there(folder / "one", one.address.beside("one"))

    assert (memory.cat("/data/one"), memory.cat("/data/two")) == (b"one", b"two")


def test_what_is_there_is_replaced_only_when_asked(folder: Path, memory: fsspec.AbstractFileSystem) -> None:
    memory.pipe("/data/out.parquet", b"precious")
    with pytest.raises(UsageError, match="already there"):
        run(folder, OUT)
    assert memory.cat("/data/out.parquet") == b"precious"
    assert run(folder, OUT, overwrite=True).rows == COUNT


def test_another_job_is_not_mixed_with_the_unfinished_one(folder: Path, memory: fsspec.AbstractFileSystem) -> None:
    interrupted(folder, 100)
    with pytest.raises(RankwiseError, match=r"memory://data/out\.parquet is another one"):
        run(folder, OUT, batch=32)
    assert run(folder, OUT, batch=32, restart=True).resumed_rows == 0


def test_a_job_that_has_done_nothing_leaves_nothing(folder: Path, memory: fsspec.AbstractFileSystem) -> None:
    with pytest.raises(RankwiseError):
        rankwise.predict("tests.offline.nets:nothing_here", folder / "x.parquet", OUT, **JOB)
    assert memory.find("/data") == []


def test_a_place_that_is_only_read_is_told(folder: Path, memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_read(*_: Any, **__: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr(type(memory), "_open", only_read)

    with pytest.raises(RankwiseError, match="nothing can be written there"):
        run(folder, OUT)


def test_what_cannot_be_elsewhere_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="a folder cannot be written to memory://data/out"):
        run(folder, "memory://data/out")
    with pytest.raises(UsageError, match="weights is an address"):
        run(folder, OUT, weights="s3://bucket/w.pt")
    with pytest.raises(UsageError, match="is the input"):
        rankwise.predict("tests.offline.nets:slow", OUT, OUT, **JOB)


def test_the_journal_holds_no_question_mark(folder: Path, memory: fsspec.AbstractFileSystem) -> None:
    run(folder, OUT)
    marker = json.loads(memory.cat("/data/.out.parquet.predicted"))
    assert marker["predicted"]["output"] == OUT
