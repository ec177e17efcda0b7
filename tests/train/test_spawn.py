"""spawn(): ranks from Python, their results back in order, the first failure told, nothing left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rankwise
from rankwise.errors import UsageError
from rankwise.train.spawn import RankProcess, _failure, _results
from tests.families import mostly_live

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(600)  # whichever test comes first waits for a program that imports torch five times


def run(script: str, folder: Path, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    (folder / "job.py").write_text(script)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([sys.executable, "job.py"], cwd=folder, env=env, capture_output=True, text=True, timeout=timeout_s)


JOBS = """\
import atexit, ctypes, json, os, signal, sys, threading, time
from pathlib import Path

import rankwise

def add(factor):
    import torch
    import torch.distributed as dist
    with rankwise.session() as job:
        total = torch.tensor([job.rank * factor])
        dist.all_reduce(total)
        return job.rank, int(total)

def fail():
    with rankwise.session() as job:
        if job.rank == 1:
            raise ValueError("bad sample")
        import torch, torch.distributed as dist
        dist.all_reduce(torch.zeros(1))

def leave():
    if os.environ["RANK"] == "0":
        atexit.register(Path("left").touch)
        return
    while not Path("left").exists():
        time.sleep(0.01)
    raise ValueError("nobody answers")

def fork():
    if os.fork() == 0:
        return "child"
    os.wait()
    return "worker"

def crash():
    if os.environ["RANK"] == "1":
        ctypes.string_at(0)
    time.sleep(60)

def exit_with(code):
    if code:
        os._exit(code)
    sys.stdout = None  # as in what a daemon starts
    return os.environ["RANK"]

def write(name):
    time.sleep(0.3)  # a checkpoint takes its time
    Path(name).write_text("all of it")

def write_late():
    atexit.register(write, "at exit")
    threading.Thread(target=write, args=("in a thread",)).start()
    return "done"

def leave_helper():
    if os.environ["RANK"] == "1":
        helper = os.fork()
        if helper == 0:
            time.sleep(600)
            os._exit(0)
        Path("helper").write_text(str(helper))
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)

def generate():
    return (number for number in range(3))

def outcome(*args):
    try:
        return {"results": rankwise.spawn(*args)}
    except rankwise.RankwiseError as error:
        return {"code": error.finding.code, "summary": error.finding.summary, "why": error.finding.why, "text": str(error)}

if __name__ == "__main__":
    outcomes = {
        "add": outcome(add, 2, 10),
        "fail": outcome(fail, 2),
        "leave": outcome(leave, 2),
        "lambda": outcome(lambda: None, 2),
        "generator": outcome(generate, 1),
        "fork": outcome(fork, 2),
        "crash": outcome(crash, 2),
        "helper": outcome(leave_helper, 2),
        "write": {**outcome(write_late, 1), "files": {name: Path(name).read_text() for name in ("at exit", "in a thread")}},
        "rank after all of them": os.environ.get("RANK"),
    }
    os.kill(int(Path("helper").read_text()), signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    outcomes["ignored, well"] = outcome(exit_with, 1, 0)
    outcomes["ignored, code 5"] = outcome(exit_with, 1, 5)
    outcomes["is ignored"] = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of one program that spawns again and again: importing torch for each test would take longer than all that they show."""
    done = run(JOBS, tmp_path_factory.mktemp("jobs"))

    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "stderr": done.stderr}


def test_results_come_back_in_the_order_of_the_ranks(outcomes: dict[str, Any]) -> None:
    assert outcomes["add"]["results"] == [[0, 10], [1, 10]]
    assert outcomes["rank after all of them"] is None


def test_the_first_failure_is_told_with_its_traceback(outcomes: dict[str, Any]) -> None:
    failed = outcomes["fail"]

    assert (failed["code"], failed["summary"]) == ("RW401", "rank 1 raised ValueError: bad sample")
    assert 'raise ValueError("bad sample")' in failed["text"]


def test_a_rank_that_had_left_is_named_beside_the_failure(outcomes: dict[str, Any]) -> None:
    assert outcomes["leave"]["code"] == "RW401" and "nobody answers" in outcomes["leave"]["summary"]
    assert "rank 0 returned without an error" in outcomes["leave"]["why"]


def test_what_cannot_travel_is_refused(outcomes: dict[str, Any]) -> None:
    assert outcomes["lambda"]["code"] == "RW001" and "cannot be given to a new process" in outcomes["lambda"]["text"]


def test_a_result_that_cannot_travel_is_told(outcomes: dict[str, Any]) -> None:
    said = "rank 0 raised TypeError: the result of rank 0 cannot be sent back: cannot pickle 'generator' object"
    assert outcomes["generator"]["summary"] == said


@pytest.mark.live
def test_a_rank_that_leaves_others_in_a_collective_is_named(tmp_path: Path) -> None:
    done = run(
        """\
import rankwise

def leave():
    with rankwise.session() as job:
        if job.rank == 1:
            import torch, torch.distributed as dist
            dist.all_reduce(torch.zeros(1))

if __name__ == "__main__":
    try:
        rankwise.spawn(leave, 2)
    except rankwise.WorkerError as error:
        print(error.finding.why)
""",
        tmp_path,
    )

    assert done.returncode == 0, done.stderr
    assert "rank 0 returned without an error" in done.stdout


@pytest.mark.live
@pytest.mark.parametrize("how", ["code", "input", "package"])
def test_a_function_that_no_new_process_would_find_is_told(tmp_path: Path, how: str) -> None:
    script = "import rankwise\ndef f(): pass\nif __name__ == '__main__':\n    rankwise.spawn(f, 2)\n"
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(script)
    words = {"code": ["-c", script], "input": ["-"], "package": ["-m", "package"]}[how]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, *words], input=script, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)

    assert done.returncode == 1 and "RW001" in done.stderr and "a new process cannot find f" in done.stderr, done.stderr


@pytest.mark.parametrize("size", mostly_live([0, 1 << 20]), ids=["small", "more than a pipe takes"])
def test_a_script_without_the_guard_is_told_once(tmp_path: Path, size: int) -> None:
    done = run(f"import rankwise\n\ndef work(data):\n    pass\n\nrankwise.spawn(work, 2, bytes({size}))\n", tmp_path)

    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert "spawn() was called again while a worker imported your script" in done.stderr


@pytest.mark.live
def test_a_worker_that_is_killed_is_named(tmp_path: Path) -> None:
    done = run(
        """\
import os, signal, time
import rankwise

def work():
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)

if __name__ == "__main__":
    rankwise.spawn(work, 2)
""",
        tmp_path,
    )

    assert done.returncode == 1
    assert "ended by signal SIGKILL" in done.stderr and "rank 1" in done.stderr


@pytest.mark.live
def test_threads_that_spawn_at_once_have_ranks_of_their_own(tmp_path: Path) -> None:
    done = run(
        """\
import os, threading
import rankwise

def work(number):
    return number, os.environ["RANK"], os.environ["WORLD_SIZE"]

if __name__ == "__main__":
    results = {}
    def start(number):
        results[number] = rankwise.spawn(work, 2, number)
    threads = [threading.Thread(target=start, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print([results.get(number) for number in range(3)], "RANK" in os.environ)
""",
        tmp_path,
    )

    assert done.stdout.strip() == str([[(number, str(rank), "2") for rank in range(2)] for number in range(3)]) + " False", done.stderr


def pipe_that_says(result: tuple[Any, ...] | None) -> RankProcess:
    """A worker whose process has told this, or ended without a word."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    if result is not None:
        theirs.send_bytes(pickle.dumps(result))
    theirs.close()
    return RankProcess(0, SimpleNamespace(pid=1, exitcode=-9, join=lambda timeout: None), ours)  # type: ignore[arg-type]


def test_whoever_lost_a_connection_is_not_blamed_for_it() -> None:
    """The kernel closes the sockets of a process that is killed before its parent hears of its end."""
    reset = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:1: Connection reset by peer"
    survivor, killed = pipe_that_says(("raised", reset, None, 0.0)), replace(pipe_that_says(None), rank=1)

    with pytest.raises(rankwise.WorkerError) as raised:
        _results([survivor, killed])

    assert raised.value.finding.code == "RW403"
    assert "rank 1" in raised.value.finding.summary


def test_a_rank_that_forks_has_the_result_of_its_worker(outcomes: dict[str, Any]) -> None:
    assert outcomes["fork"]["results"] == ["worker", "worker"]
    assert "a process that rank 0 had forked came back from its function, and was ended" in outcomes["stderr"]


def test_a_crash_is_called_one(outcomes: dict[str, Any]) -> None:
    crashed = outcomes["crash"]

    assert crashed["code"] == "RW405" and "rank 1" in crashed["summary"] and "ended by signal SIGSEGV" in crashed["summary"]


def test_a_killed_worker_whose_own_helper_lives_on_is_told(outcomes: dict[str, Any]) -> None:
    """The helper holds the worker's end of the pipe open."""
    assert outcomes["helper"]["code"] == "RW403" and "rank 1" in outcomes["helper"]["summary"]


def test_a_worker_that_has_no_output_brings_back_its_result(outcomes: dict[str, Any]) -> None:
    assert outcomes["ignored, well"]["results"] == ["0"]


@pytest.mark.live
def test_tensors_travel_by_value_both_ways(tmp_path: Path) -> None:
    """The worker has ended when its result is read, and no rank sees what another writes into an argument."""
    done = run(
        """\
import multiprocessing.connection
import os
import time

import torch

import rankwise

def work(weights):
    weights += int(os.environ["RANK"]) + 1
    time.sleep(1)
    parameter = torch.ones(2, requires_grad=True)
    return {"weights": weights, "not a leaf": parameter * 2}

class Unreadable:
    def __reduce__(self):
        return int, ("no number",)

def unreadable():
    return Unreadable()

def slowly(*args, wait=multiprocessing.connection.wait):
    ready = wait(*args)
    time.sleep(2)
    return ready

if __name__ == "__main__":
    multiprocessing.connection.wait = slowly
    weights = torch.zeros(3)
    for result in rankwise.spawn(work, 2, weights):
        print(result["weights"].tolist(), result["not a leaf"].tolist())
    print(weights.tolist(), weights.is_shared())
    try:
        rankwise.spawn(unreadable, 1)
    except rankwise.WorkerError as error:
        print(error.finding.summary)
""",
        tmp_path,
    )

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["[1.0, 1.0, 1.0] [2.0, 2.0]", "[2.0, 2.0, 2.0] [2.0, 2.0]", "[0.0, 0.0, 0.0] False"]
    assert "the result of rank 0 cannot be read back: ValueError" in lines[3]


@pytest.mark.parametrize("nproc", [0, -1, 1.5, "2", True])
def test_a_number_of_processes_that_is_none_is_refused(nproc: Any) -> None:
    with pytest.raises(UsageError, match="whole number"):
        rankwise.spawn(print, nproc)


def test_a_process_that_ignores_its_childrens_ends_hears_of_them_all_the_same(outcomes: dict[str, Any]) -> None:
    assert outcomes["ignored, well"]["results"] == ["0"]
    assert "ended with exit code 5" in outcomes["ignored, code 5"]["summary"]
    assert outcomes["is ignored"]


def test_what_threads_and_exit_handlers_of_a_worker_write_is_there_when_spawn_returns(outcomes: dict[str, Any]) -> None:
    assert outcomes["write"]["results"] == ["done"]
    assert set(outcomes["write"]["files"].values()) == {"all of it"}


def test_a_worker_that_a_real_time_signal_ended_is_told() -> None:
    process: Any = SimpleNamespace(exitcode=-40, pid=7)
    pipe: Any = None
    finding = _failure(RankProcess(0, process, pipe), "", None, [])

    assert (finding.code, finding.summary) == ("RW403", "rank 0 (pid 7) ended by signal 40 without saying why")
