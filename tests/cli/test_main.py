"""The command without a command: help, version, and a reader that went away."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwise.cli.main import main


def test_a_reader_that_went_away_is_no_traceback(tmp_path: Path) -> None:
    """`rankwise explain RW201 | true`."""
    for argv in (["explain", "RW201"], ["--help"], ["run", "--help"]):
        read_end, write_end = os.pipe()
        os.close(read_end)
        with os.fdopen(write_end, "wb") as closed:
            done = subprocess.run([sys.executable, "-m", "rankwise", *argv], stdout=closed, stderr=subprocess.PIPE, timeout=60)

        assert b"Traceback" not in done.stderr
        assert b"BrokenPipeError" not in done.stderr


def test_help_and_version_are_no_errors(run_rankwise: Callable[..., Any]) -> None:
    for argv in (["--help"], ["-h"], ["run", "--help"], ["run", "-h"], ["explain", "--help"], ["--version"], ["explain", "rw201"]):
        ran = run_rankwise(*argv)

        assert ran.code == 0
        assert ran.stdout
        assert not ran.stderr


def test_nothing_at_all_shows_the_help(run_rankwise: Callable[..., Any]) -> None:
    for argv in ([], ["run"]):
        ran = run_rankwise(*argv)

        assert ran.code == 2
        assert "usage: rankwise" in ran.text


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_memory_that_ran_out_is_a_finding(error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def convert(argv: list[str]) -> int:
        raise error

    monkeypatch.setattr("rankwise.cli.weights.main", convert)

    assert main(["weights", "convert", "last.pt", "plain.safetensors"]) == 2
    assert capsys.readouterr().err.startswith("RW408  rankwise weights ran out of memory")


def test_other_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(argv: list[str]) -> int:
        raise RuntimeError("a fault")

    monkeypatch.setattr("rankwise.cli.weights.main", convert)

    with pytest.raises(RuntimeError, match="a fault"):
        main(["weights"])
