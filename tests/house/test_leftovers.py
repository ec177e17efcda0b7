"""The guard of tests/conftest.py: a file of tests that leaves something behind fails, and what it left is ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

from tests.house.imports import ROOT

LEAVES = """
import subprocess, sys, tempfile
from pathlib import Path
import tests.conftest

tests.conftest.SETTLE_S = 0.5  # they stay for good

def test_leaves_a_process():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
    Path(__file__).with_name("pid").write_text(str(process.pid))

def test_leaves_a_temporary_file():
    tempfile.tempdir = None  # looked up anew
    tempfile.mkstemp(prefix="rankwise-left")

def test_leaves_nothing():
    pass
"""


def test_what_tests_leave_behind_fails_them_and_is_ended(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(LEAVES)
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-q", "-W", "ignore", "-c", str(ROOT / "pyproject.toml")]

    done = subprocess.run([sys.executable, "-m", "pytest", *options, "test_it.py"], cwd=tmp_path, capture_output=True, text=True)

    assert "3 passed, 2 errors" in done.stdout, done.stdout + done.stderr
    assert "ERROR at teardown of test_leaves_a_temporary_file" in done.stdout
    assert "time.sleep(300)" in done.stdout
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
