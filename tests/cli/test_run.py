"""Wrong usage: a finding with a way out, exit code 2, no traceback, and nothing is started or overwritten."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwise.cli.main import main

WRONG: dict[str, list[str]] = {
    "unknown command": ["trian"],
    "unknown option": ["--frobnicate"],
    "missing script": ["run", "--standalone", "trian.py"],
    "no script": ["run", "--standalone"],
    "no command": ["run", "--"],
    "stall-after": ["run", "--stall-after", "abc", "train.py"],
    "on-stall": ["run", "--on-stall", "maybe", "train.py"],
    "torchrun options before a command": ["run", "--nproc-per-node", "2", "--", "true"],
    "program that is not there": ["run", "--", "no-such-program-anywhere"],
    "program that is none": ["run", "--", "./train.py"],
    "unknown cause": ["explain", "RW999"],
    "no run": ["explain", "nowhere"],
    "not a run": ["explain", "."],
    "explain nothing": ["explain"],
    "explain too much": ["explain", "RW201", "RW202"],
}


@pytest.mark.parametrize("argv", WRONG.values(), ids=WRONG)
def test_it_is_told_and_exits_2(tmp_path: Path, run_rankwise: Callable[..., Any], argv: list[str]) -> None:
    (tmp_path / "train.py").write_text("open('started', 'w')\n")

    ran = run_rankwise(*argv, cwd=tmp_path)

    assert ran.code == 2, ran.text
    assert "Traceback" not in ran.text
    assert not ran.stdout
    assert ran.stderr.startswith(("RW001", "RW002")), ran.stderr
    assert "next " in ran.stderr  # a way out
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "rankwise-runs").exists()  # no folder is left for a job that never was


def test_a_run_is_not_overwritten(tmp_path: Path, run_rankwise: Callable[..., Any]) -> None:
    first = run_rankwise("run", "--out", "out", "--", "true", cwd=tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    second = run_rankwise("run", "--out", "out", "--", "touch", "started", cwd=tmp_path)

    assert (first.code, second.code) == (0, 2)
    assert "already holds a run" in second.stderr
    assert not (tmp_path / "started").exists()
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "out", ["file/out", "file", "/proc/rankwise", "x" * 300, "nul\0"], ids=["below a file", "a file", "proc", "long", "nul"]
)
def test_a_folder_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], out: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)

    assert main(["run", f"--out={out}", "--", "touch", "started"]) == 2
    assert capsys.readouterr().err.startswith("RW001")
    assert not (tmp_path / "started").exists()


def test_an_unwritable_folder(tmp_path: Path, run_rankwise: Callable[..., Any]) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    (tmp_path / "closed").mkdir(mode=0o500)
    ran = run_rankwise("run", "--out", "closed/out", "--", "touch", "started", cwd=tmp_path)

    assert ran.code == 2
    assert ran.stderr.startswith("RW001")


@pytest.mark.parametrize("where", ["a file in the way", "read-only"])
def test_a_working_folder_that_cannot_be_written(tmp_path: Path, where: str) -> None:
    """The run folder goes to the temporary directory, which is said, and the job runs."""
    run = [sys.executable, "-m", "rankwise", "run", "--", "sh", "-c", "echo here; exit 3"]
    if where == "read-only":
        mount = f'mount --bind "{tmp_path}" "{tmp_path}" && mount -o remount,bind,ro "{tmp_path}" && cd "{tmp_path}" && exec "$@"'
        if subprocess.run(["unshare", "-m", "sh", "-c", mount, "sh", "true"], capture_output=True).returncode:
            pytest.skip("needs the right to mount a file system in a namespace of its own")
        run = ["unshare", "-m", "sh", "-c", mount, "sh", *run]
    else:
        (tmp_path / "rankwise-runs").touch()

    done = subprocess.run(run, capture_output=True, text=True, timeout=90, cwd=tmp_path)
    (folder,) = Path(os.environ["TMPDIR"]).glob("rankwise-run-*")
    verdict = json.loads((folder / "verdict.json").read_text())
    shutil.rmtree(folder)

    assert done.returncode == 3, done.stderr
    assert done.stdout == "here\n"
    assert f"so the run folder is {folder}" in done.stderr
    assert verdict["exit_code"] == 3
