"""The live line of a job that is still starting."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankwise.launch.peers import Peer
from rankwise.launch.starting import starting_text
from tests.launch.jobs import write_script

S = 1_000_000_000


class SeenRanks:
    """What an observer sees of this node's ranks: since when each waits in init_process_group, None for those that are through."""

    def __init__(self, since_ns: dict[int, int | None], idle: tuple[int, ...] = ()) -> None:
        inits = {rank: [SimpleNamespace(started_ns=ns or 0, ended_ns=0 if ns is not None else 1)] for rank, ns in since_ns.items()}
        self.journals = {rank: SimpleNamespace(inits=inits.get(rank, []), world_size=4) for rank in (*since_ns, *idle)}

    def is_alive(self, pid: int) -> bool:
        return True

    def rank_pids(self) -> dict[int, list[int]]:
        return {rank: [rank] for rank in self.journals}


@pytest.mark.parametrize(
    ("seen", "joined_elsewhere", "text"),
    [
        (SeenRanks({0: 0, 1: 0}), (3,), "3 of 4 ranks registered, waiting for rank 2 on node-b, 14 s"),
        (SeenRanks({0: 4 * S}, idle=(1,)), (), "1 of 4 ranks registered, waiting for ranks 1-3, 10 s"),
        (SeenRanks({0: 0, 1: 0}), (2, 3), "4 of 4 ranks registered, not yet: backend connected, 14 s"),
        (SeenRanks({0: None, 1: None}), (2, 3), ""),
        (SeenRanks({}), (), ""),
    ],
)
def test_says_who_is_waited_for_and_where(seen: SeenRanks, joined_elsewhere: tuple[int, ...], text: str) -> None:
    other = Peer(2, host="node-b", ranks={2: 12, 3: 13}, joined=joined_elsewhere)

    assert starting_text(seen, [other], 14 * S) == text


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
