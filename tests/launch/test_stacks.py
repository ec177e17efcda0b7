"""Stacks from outside: also of processes with many threads, and where py-spy takes longer than anybody wants to wait."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankwise import pyspy
from rankwise.launch import stacks
from rankwise.launch.stacks import StackReader
from tests.launch.jobs import eventually, write_script

# As a rank with the probe: its faulthandler writes to a file of its own when it is asked to.
SLEEPER = """
import faulthandler, os, pathlib, signal, sys, threading, time
here = pathlib.Path(__file__).parent
file = open(here / f"t-{os.getpid()}", "w")
faulthandler.register(signal.SIGRTMAX - 2, file, all_threads=True, chain=False)

def rest():
    time.sleep(600)

for _ in range(int(sys.argv[1])):
    threading.Thread(target=rest, daemon=True).start()
(here / "up").touch()
rest()
"""
RUNNER = SLEEPER.replace("time.sleep(600)", "while True: sum(range(9))")
SLOW = """\
#!/bin/sh
echo $$ >> "{folder}/asked"
exec sleep 600
"""
Sleep = Callable[[int], int]


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Sleep]:
    """`sleeper(n)` is the pid of a process with n threads besides the main one, all asleep in rest()."""
    started: list[subprocess.Popen[bytes]] = []

    def start(num_threads: int) -> int:
        started.append(subprocess.Popen([sys.executable, str(write_script(tmp_path, SLEEPER)), str(num_threads)]))
        eventually("the process is up", (tmp_path / "up").exists)
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def slow_py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that would take ten minutes; the file it names says how often it was asked."""
    program = tmp_path / "py-spy"
    program.write_text(SLOW.format(folder=tmp_path))
    program.chmod(0o700)
    monkeypatch.setattr(pyspy, "find_py_spy", lambda: str(program))
    monkeypatch.setattr(stacks, "_PY_SPY_S", 1.0)
    return tmp_path / "asked"


def read_until_found(reader: StackReader, pid: int) -> tuple[stacks.Thread, ...]:
    found: dict[int, tuple[stacks.Thread, ...]] = {}

    def look() -> bool:
        found.update(reader.read([pid]))
        return pid in found

    eventually("a stack", look)
    return found[pid]


@pytest.mark.parametrize("num_threads", [0, 300])
def test_all_threads(tmp_path: Path, sleeper: Sleep, num_threads: int) -> None:
    threads = read_until_found(StackReader(tmp_path), sleeper(num_threads))

    assert len(threads) == num_threads + 1
    (main,) = [thread for thread in threads if thread.is_main]
    assert [frame.function for frame in main.frames] == ["rest", "<module>"]


def test_where_py_spy_takes_too_long_faulthandler_answers(
    tmp_path: Path, sleeper: Sleep, slow_py_spy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for py-spy, and it is not asked again about a process that it was too slow for, as long as faulthandler answers."""
    monkeypatch.setattr(stacks, "_PATIENCE_S", 0.1)
    reader, pid = StackReader(tmp_path), sleeper(3)

    assert reader.read([pid]) == {}
    eventually("late stacks", lambda: reader.has_news)
    assert reader.read([])[pid][0].frames[0].function == "rest"
    assert not reader.has_news
    eventually("the process is back from the signal", lambda: stacks._stands_still(pid))
    read_until_found(reader, pid)

    (asked,) = slow_py_spy.read_text().split()
    eventually("py-spy is gone", lambda: not Path(f"/proc/{asked}").exists())


def test_a_process_is_not_stopped_by_being_looked_at(tmp_path: Path, sleeper: Sleep, slow_py_spy: Path) -> None:
    pid = sleeper(0)
    read_until_found(StackReader(tmp_path), pid)

    assert Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "S"


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[int]:
    """The pid of a process that runs Python code all the time."""
    process = subprocess.Popen([sys.executable, str(write_script(tmp_path, RUNNER)), "0"])
    eventually("the process is up", (tmp_path / "up").exists)
    yield process.pid
    process.kill()
    process.wait()


def test_a_process_that_runs_is_not_sent_the_signal(tmp_path: Path, runner: int, slow_py_spy: Path) -> None:
    """It may crash of it: faulthandler reads frames that are half made."""
    reader = StackReader(tmp_path)
    for _ in range(3):
        reader.read([runner])
        eventually("nothing is read any more", lambda: not reader._reading)

    assert not (tmp_path / f"t-{runner}").read_bytes()


def test_where_py_spy_is_refused_one_that_runs_is_asked_a_few_times(tmp_path: Path, runner: int) -> None:
    reader = StackReader(tmp_path)
    reader.refused = "ptrace is refused here"
    for _ in range(6):
        reader.read([runner])
        eventually("nothing is read any more", lambda: not reader._reading)

    assert (tmp_path / f"t-{runner}").read_text().count("most recent call first") == stacks._MOST_RUNNING


def test_a_rank_that_runs_is_peeked_at_with_py_spy_alone(tmp_path: Path, sleeper: Sleep, slow_py_spy: Path) -> None:
    pid = sleeper(0)
    assert StackReader(tmp_path).peek(pid) == ()

    assert not (tmp_path / f"t-{pid}").read_bytes()


def test_a_process_that_is_gone_has_no_stack(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()

    assert StackReader(tmp_path).read([child.pid]) == {}


def test_a_bug_in_a_thread_is_raised_where_somebody_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: StackReader, pid: int) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(StackReader, "_threads_of", broken)
    with pytest.raises(RuntimeError, match="a bug of ours"):
        StackReader(tmp_path).read([os.getpid()])
