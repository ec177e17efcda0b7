"""However the launcher ends, nothing of the job stays behind: no rank, no DataLoader worker, no grandchild that will not listen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.families import mostly_live
from tests.launch.jobs import alive, eventually, read_pids, write_script

# A job that is hard to end: children that ignore every polite signal, one in a session of its own whose parent is gone.
STUBBORN = """
import multiprocessing, os, pathlib, signal, subprocess, sys, time

HERE = pathlib.Path(__file__).resolve().parent

def stay():
    (HERE / f"pid-{os.getpid()}").touch()
    while True:
        time.sleep(60)

def deaf():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    stay()

def leave():
    while len(list(HERE.glob("pid-*"))) < 3:
        time.sleep(0.05)

def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            deaf()
    os._exit(0)

if __name__ == "__main__":
    if sys.argv[1] == "child":
        deaf()
    subprocess.Popen([sys.executable, __file__, "child"])
    subprocess.Popen([sys.executable, __file__, "child"], start_new_session=True, env={"PATH": os.environ["PATH"]})
    if sys.argv[1] != "leave":  # a daemonic child is ended by multiprocessing itself when its parent leaves
        multiprocessing.get_context("fork").Process(target=stay, daemon=True).start()
    if os.fork() == 0:
        daemon()
    os.wait3(0)
    {"stay": stay, "deaf": deaf, "leave": leave}[sys.argv[1]]()
"""
NUM_STUBBORN = 5
Start = Callable[..., subprocess.Popen[bytes]]
POLITE = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", mostly_live([*POLITE, signal.SIGKILL], 2), ids=lambda number: number.name)
def test_nothing_stays_behind(tmp_path: Path, start: Start, number: signal.Signals) -> None:
    script = write_script(tmp_path, STUBBORN)
    run = start("--out", tmp_path / "out", "--", sys.executable, script, "stay", cwd=tmp_path, is_impatient=True)
    pids = read_pids(tmp_path, NUM_STUBBORN)
    family = [process.pid for process in psutil.Process(run.pid).children(recursive=True)]  # the guardian among them

    run.send_signal(number)
    code = run.wait(timeout=60)

    eventually("the job is gone", lambda: not alive(pids), 30)
    eventually("the guardian is gone", lambda: not alive(family), 30)
    eventually("its folder is gone", lambda: not list(Path(os.environ["TMPDIR"]).glob("rankwise*")), 30)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    if number in POLITE:
        verdict = json.loads((tmp_path / "out" / "verdict.json").read_text())
        assert verdict["exit_code"] == code
        assert verdict["findings"] == []  # the user ended it: nobody is to blame
        assert "rankwise/" not in (tmp_path / "run.err").read_text()  # no traceback of ours


# Two ranks of torchrun, each with DataLoader workers that are in the middle of a sample.
LOADERS = """
import os, pathlib, time
import torch
from torch.utils.data import DataLoader, Dataset

HERE = pathlib.Path(__file__).resolve().parent

class Slow(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, i):
        (HERE / f"pid-{os.getpid()}").touch()
        time.sleep(600)

(HERE / f"pid-{os.getpid()}").touch()
for batch in DataLoader(Slow(), num_workers=2):
    pass
"""


@pytest.mark.live
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_no_dataloader_worker_stays_behind(tmp_path: Path, start: Start, number: signal.Signals) -> None:
    """torchrun puts each rank into a session of its own, so that killing its group leaves them alive."""
    script = write_script(tmp_path, LOADERS)
    run = start("--out", tmp_path / "out", "--standalone", "--nproc-per-node", "2", script, cwd=tmp_path)
    pids = read_pids(tmp_path, 6)

    run.send_signal(number)
    run.wait(timeout=90)

    eventually("ranks and workers are gone", lambda: not alive(pids), 30)


def test_a_second_ctrl_c_ends_a_job_that_does_not_listen(tmp_path: Path, start: Start) -> None:
    script = write_script(tmp_path, STUBBORN)
    run = start("--out", tmp_path / "out", "--", sys.executable, script, "deaf", cwd=tmp_path)
    pids = read_pids(tmp_path, NUM_STUBBORN)

    def impatient() -> bool:
        if run.poll() is None:
            run.send_signal(signal.SIGINT)
            time.sleep(0.5)
        return run.poll() is not None

    eventually("the launcher gives up", impatient)

    assert run.returncode in (128 + signal.SIGINT, -signal.SIGINT)
    eventually("the job is gone", lambda: not alive(pids), 30)


def test_the_job_ends_in_its_own_way_when_it_can(tmp_path: Path, start: Start) -> None:
    """The signal reaches the command, which may save what it has and leave with a code of its own."""
    script = write_script(
        tmp_path,
        """
        import os, pathlib, signal, sys, time
        def save(number, frame):
            print("saved on", signal.Signals(number).name, flush=True)
            sys.exit(5)
        signal.signal(signal.SIGTERM, save)
        (pathlib.Path(__file__).parent / f"pid-{os.getpid()}").touch()
        while True:
            time.sleep(60)
        """,
    )
    run = start("--out", tmp_path / "out", "--", sys.executable, script, cwd=tmp_path)
    read_pids(tmp_path, 1)

    run.send_signal(signal.SIGTERM)

    assert run.wait(timeout=60) == 5
    assert "saved on SIGTERM" in (tmp_path / "run.out").read_text()


def test_nohup_stays_nohup(tmp_path: Path, start: Start) -> None:
    """A launcher that was started with SIGHUP ignored goes on when the terminal is closed."""
    script = write_script(
        tmp_path,
        """
        import os, pathlib, signal, time
        here = pathlib.Path(__file__).parent
        print("handler", signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, flush=True)
        (here / f"pid-{os.getpid()}").touch()
        while not (here / "go").exists():
            time.sleep(0.05)
        print("finished", flush=True)
        """,
    )
    run = start("--out", tmp_path / "out", "--", sys.executable, script, cwd=tmp_path, preexec_fn=_ignore_sighup)
    read_pids(tmp_path, 1)

    ignored = next(line for line in Path(f"/proc/{run.pid}/status").read_text().splitlines() if line.startswith("SigIgn"))
    assert int(ignored.split()[1], 16) >> (signal.SIGHUP - 1) & 1
    run.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    assert run.wait(timeout=60) == 0
    assert (tmp_path / "run.out").read_text().splitlines() == ["handler True", "finished"]


def _ignore_sighup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def test_ctrl_c_ends_what_a_script_put_in_the_background(tmp_path: Path, start: Start) -> None:
    """A shell starts `rankwise run … &` with SIGINT ignored; torchrun ends on SIGINT all the same, with exit code 1."""
    script = write_script(
        tmp_path,
        """
        import os, pathlib, time
        (pathlib.Path(__file__).parent / f"pid-{os.getpid()}").touch()
        time.sleep(600)
        """,
    )
    run = start("--out", tmp_path / "out", "--standalone", "--nproc-per-node", "1", script, cwd=tmp_path, preexec_fn=_ignore_sigint)
    pids = read_pids(tmp_path, 1)

    run.send_signal(signal.SIGINT)

    assert run.wait(timeout=60) == 1
    eventually("the rank is gone", lambda: not alive(pids), 30)


def test_a_command_that_ignores_ctrl_c_goes_on_ignoring_it(tmp_path: Path, start: Start) -> None:
    script = write_script(
        tmp_path,
        """
        import os, pathlib, time
        here = pathlib.Path(__file__).parent
        (here / f"pid-{os.getpid()}").touch()
        while not (here / "go").exists():
            time.sleep(0.05)
        """,
    )
    run = start("--out", tmp_path / "out", "--", sys.executable, script, cwd=tmp_path, preexec_fn=_ignore_sigint)
    read_pids(tmp_path, 1)
    run.send_signal(signal.SIGINT)
    (tmp_path / "go").touch()

    assert run.wait(timeout=60) == 0


def _ignore_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_what_a_job_leaves_running_when_it_ends_is_ended(tmp_path: Path, start: Start) -> None:
    """A command that returns while its helpers still run."""
    script = write_script(tmp_path, STUBBORN)
    run = start("--out", tmp_path / "out", "--", sys.executable, script, "leave", cwd=tmp_path, is_impatient=True)

    code = run.wait(timeout=90)

    pids = [int(path.name[4:]) for path in tmp_path.glob("pid-*")]
    assert code == 0, (tmp_path / "run.err").read_text()
    assert len(pids) >= 3
    eventually("its helpers are gone", lambda: not alive(pids), 30)


def test_signals_before_the_job_is_up(tmp_path: Path, start: Start) -> None:
    """At any moment of the start: it ends, and what it had started ends with it."""
    script = write_script(tmp_path, "import time\ntime.sleep(600)\n")
    for delay in (0.05, 0.3, 0.6, 1.0):
        run = start("--out", tmp_path / f"out-{delay}", "--", sys.executable, script, cwd=tmp_path)
        time.sleep(delay)
        run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=60) != 0
