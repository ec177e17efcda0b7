"""The command without a command: help, version, and a reader that went away."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


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
