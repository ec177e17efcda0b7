"""The journal: lines that json can read, one file per process, and no secrets."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from rankwise.probe import descriptors, journal, process


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(process, "live", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -1,
        1.5,
        1e300,
        'a"b\\\n\x00ü\udcff',
        [],
        [1, [2, "x"]],
        (1, 2),
        {},
        {"a": {"b": None}},
        {1: 2},
        Path("/a"),
        1 << 80,
    ],
    ids=repr,
)
def test_values_are_written_as_json_does(value: Any) -> None:
    assert journal._json(value) == json.dumps(value, default=str)


def test_a_number_that_is_no_json_becomes_null() -> None:
    assert journal._json([float("nan"), float("inf"), -float("inf")]) == "[null, null, null]"


def test_a_line_has_its_kind_and_its_time_and_goes_to_this_processs_own_file(folder: Path) -> None:
    journal.write("one", a=1)
    journal.write("two", t=5)

    lines = [json.loads(line) for line in (folder / f"p-{os.getpid()}.jsonl").read_text().splitlines()]
    assert lines[0]["k"] == "one" and lines[0]["a"] == 1 and lines[0]["t"] > 0
    assert lines[1] == {"t": 5, "k": "two"}
    assert (folder / f"p-{os.getpid()}.jsonl").stat().st_mode & 0o777 == 0o600


def test_without_a_folder_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "live", "")
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("opened"))

    journal.write("one")


@pytest.mark.parametrize(("number", "is_written"), [(errno.EMFILE, True), (errno.ENFILE, True), (errno.EACCES, False)])
def test_a_process_without_free_descriptors_writes_through_the_one_it_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_written: bool
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(number, "no")

    path = folder / f"p-{os.getpid()}.jsonl"
    kept = os.open(path, os.O_WRONLY | os.O_CREAT)
    monkeypatch.setattr(descriptors, "find", lambda key, at: kept if (key, at) == ("journal", str(path)) else -1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        try:
            journal.write("last")
        except OSError:
            assert not is_written
    os.close(kept)

    assert ("last" in path.read_text()) == is_written


def test_what_decides_about_ranks_is_kept_and_secrets_are_not() -> None:
    given = {
        "RANK": "0", "SLURM_JOB_ID": "7", "NCCL_DEBUG": "INFO", "HOME": "/home/ada", "AWS_SECRET_ACCESS_KEY": "x", "SLURM_TOKEN": "x",
        "TORCH_auth": "x", "NCCL_PROXY": "http://me:pw@host", "MY_RANK": "1", "GLOO_LONG": "y" * 900,
    }  # fmt: skip

    assert journal.rank_environment(given) == {"RANK": "0", "SLURM_JOB_ID": "7", "NCCL_DEBUG": "INFO", "GLOO_LONG": "y" * 500}
