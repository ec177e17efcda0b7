"""Small jobs for the launcher's tests, and a way to start `rankwise run` and watch it from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

PATIENCE_S = 60.0  # for things that take a moment, on a machine that is busy with other tests

# Ranks forked from one process that has imported torch: two ranks for the price of one start.
FORKED_RANKS = """
import multiprocessing, os, pathlib, sys, time
import torch
import torch.distributed as dist

HERE = pathlib.Path(__file__).resolve().parent

def wait_for(name):
    while not (HERE / name).exists():
        time.sleep(0.05)

def main(rank):
    dist.init_process_group("gloo", init_method=f"file://{HERE}/store", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(2))
    work(rank)
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.set_num_threads(1)
    ranks = [multiprocessing.get_context("fork").Process(target=main, args=(rank,)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(max(abs(process.exitcode) for process in ranks))
"""


def write_script(folder: Path, text: str, name: str = "job.py") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip("\n"))
    return path


def forked_ranks(folder: Path, work: str, name: str = "job.py") -> Path:
    """A script of two ranks that each do `work(rank)`; line numbers are those of the file written."""
    work = textwrap.dedent(work).strip("\n")
    return write_script(folder, FORKED_RANKS.replace("def main(rank):", f"{work}\n\ndef main(rank):"), name)


def line_of(script: Path, comment: str) -> int:
    """The number of the line that ends in this comment."""
    marked = [number for number, text in enumerate(script.read_text().splitlines(), 1) if text.endswith(f"# {comment}")]
    assert len(marked) == 1, f"{comment!r} marks {len(marked)} lines of {script.name}"
    return marked[0]


# `rankwise`, with less patience for processes that do not end when they are asked to.
IMPATIENT = """
import sys
import rankwise.launch.job
rankwise.launch.job.END_GRACE_S = 0.5
from rankwise.cli.main import main
sys.exit(main())
"""


def start(*args: str | Path, cwd: Path | None = None, is_impatient: bool = False, **more: Any) -> subprocess.Popen[bytes]:
    """`rankwise run ARGS…`, running; its output goes to files beside the test, so that no pipe can fill."""
    out, err = ((Path(cwd or ".") / name).open("wb") for name in ("run.out", "run.err"))
    with out, err:
        command = [sys.executable, *(["-c", IMPATIENT] if is_impatient else ["-m", "rankwise"]), "run", *map(str, args)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd, **more)


def eventually(what: str, condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """The condition's first true value; fails the test when there is none in time."""
    deadline = time.monotonic() + patience_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {patience_s:g} s in vain: {what}"
        time.sleep(0.05)
    return value


def alive(pids: list[int]) -> list[int]:
    """Those of the processes that still run; a zombie does not."""
    found = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            pass
    return found


def read_pids(folder: Path, count: int) -> list[int]:
    """The pids that the job's processes have left as names of files `pid-N`, once all of them are there."""

    def found() -> list[int]:
        pids = [int(path.name[4:]) for path in folder.glob("pid-*")]
        return pids if len(pids) >= count else []

    pids: list[int] = eventually(f"{count} processes of the job", found)
    return pids


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, **more}
