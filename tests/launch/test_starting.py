"""The live line of a job that is still starting."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rankwise.launch.starting import StartProgress, starting_text
from tests.launch.jobs import write_script

HOSTS = {0: "node-a", 1: "node-a", 2: "node-b", 3: "node-b"}
S = 1_000_000_000


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (StartProgress(4, HOSTS, frozenset({0, 1, 3}), 0), "3 of 4 ranks registered, waiting for rank 2 on node-b, 14 s"),
        (StartProgress(4, {0: "node-a"}, frozenset({0}), 4 * S), "1 of 4 ranks registered, waiting for ranks 1-3, 10 s"),
        (StartProgress(4, HOSTS, frozenset(range(4)), 0), "4 of 4 ranks registered, not yet: backend connected, 14 s"),
        (StartProgress(4, HOSTS, frozenset(range(4)), None), ""),
        (StartProgress(), ""),
    ],
)
def test_says_who_is_waited_for_and_where(progress: StartProgress, text: str) -> None:
    assert starting_text(progress, 14 * S) == text


@pytest.mark.live
def test_on_a_terminal_the_line_names_the_rank_that_is_waited_for(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, pathlib, time
        import torch.distributed as dist
        go = pathlib.Path(__file__).parent / "go"
        while os.environ["RANK"] == "1" and not go.exists():
            time.sleep(0.05)
        dist.init_process_group("gloo")
        dist.destroy_process_group()
        """,
    )
    ours, theirs = pty.openpty()
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "120", "TERM": "xterm"}
    job = ("--standalone", "--nproc-per-node", "2", str(script))
    command = [sys.executable, "-m", "rankwise", "run", "--out", str(tmp_path / "out"), "--stall-after", "60", *job]
    run = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    line = f"1 of 2 ranks registered, waiting for rank 1 on {os.uname().nodename}".encode()
    seen = b""
    try:
        deadline = time.monotonic() + 60
        while (chunk := _read_terminal(ours)) and time.monotonic() < deadline:
            seen += chunk
            if line in seen:
                (tmp_path / "go").touch()
        assert run.wait(timeout=60) == 0
    finally:
        run.kill()
        run.wait()
        os.close(ours)

    assert line in seen


def _read_terminal(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 16)
    except OSError:  # the last writer is gone
        return b""
