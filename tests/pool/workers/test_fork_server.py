"""The process that workers are forked from: it may be killed at any time, and nothing of a pool outlives its parent."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from rankwise.cli.top import _text
from rankwise.pool import DeadlineExceeded, Model, Pool
from rankwise.pool.errors import PoolError
from rankwise.pool.schedule.state import Seat
from rankwise.pool.workers import fork_server
from rankwise.pool.workers.fork_server import ForkServer, pause_s
from rankwise.pool.workers.supervisor import Lifecycle
from tests.families import mostly_live
from tests.pool.models import EXIT

STARTS_COLD = True  # as users start it: see tests/warm.py
SCRIPT = """
import sys, time
import numpy as np
from rankwise.pool import Model, Pool
pool = Pool({"echo": Model("tests.pool.models:echo"), "sleeper": Model("tests.pool.models:sleeper")}, workers=2)
pool.submit("echo", np.ones(3)).result(60)
x = pool.empty((1_000_000,))
busy = [pool.submit("sleeper", %s), pool.submit("echo", x)]
print("torch" in sys.modules, flush=True)
%s
"""
# An end of the interpreter's own waits for what was submitted.
ENDS = {"killed": (30.0, "time.sleep(60)"), "left": (30.0, "import os; os._exit(0)"), "raised": (0.5, "raise SystemExit(3)")}


@pytest.mark.parametrize("how", mostly_live(ENDS))
def test_nothing_is_left_soon_after_the_parent(how: str) -> None:
    before = set(os.listdir("/dev/shm"))
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", SCRIPT % ENDS[how]]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root)
    assert parent.stdout is not None and parent.stderr is not None
    with parent.stdout:
        assert parent.stdout.readline().strip() == "False"  # torch is the workers' business
        below = psutil.Process(parent.pid).children(recursive=True) if how == "killed" else []
        if how == "killed":
            assert len(below) == 3
            parent.send_signal(signal.SIGKILL)
        parent.wait(20)

    with parent.stderr:
        assert "Traceback" not in parent.stderr.read()  # of a worker that finds nobody to answer
    wait_for(lambda: not [process for process in below if is_running(process.pid)], 20)
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "rankwise" in name}


HERE = "tests.pool.models"
WAIT_S = 60.0


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool({"facts": Model(f"{HERE}:facts", replicas=2), "sleeper": Model(f"{HERE}:sleeper")}, workers=2) as pool:
        yield pool


def fork_server_pid(pool: Pool) -> int:
    """Of the process the workers are forked from; the present one."""
    return wait_for(lambda: pool._backend.lifecycle.fork_server).process.pid  # type: ignore[no-any-return]


def pids(pool: Pool) -> set[int]:
    return {worker["pid"] for worker in pool.stats()["workers"] if worker["ready"]}


def wait_for(look: Callable[[], Any], wait_s: float = WAIT_S) -> Any:
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it never came about")


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


@pytest.mark.live
def test_workers_that_are_well_outlive_it(pool: Pool) -> None:
    before = wait_for(lambda: len(pids(pool)) == 2 and pids(pool))
    busy = pool.submit("sleeper", 1.0)
    wait_for(busy.running)
    first = fork_server_pid(pool)
    kill(first)

    assert busy.result(WAIT_S) and pool.submit("facts").result(WAIT_S)["pid"] in before
    wait_for(lambda: fork_server_pid(pool) != first)
    assert pids(pool) == before and pool.stats()["restarts"] == 0
    victim = before.pop()
    kill(victim)
    wait_for(lambda: len(pids(pool)) == 2 and victim not in pids(pool))  # from the new one; nobody told how the old one ended
    assert pool.stats()["restarts"] == 1


def test_workers_that_are_lost_together_are_replaced_once_each() -> None:
    with Pool({"facts": Model(f"{HERE}:facts")}, workers=3) as pool:
        before, lifecycle = wait_for(lambda: len(pids(pool)) == 3 and pids(pool)), pool._backend.lifecycle
        kill(fork_server_pid(pool))
        wait_for(lambda: all(worker.handle.is_orphan for worker in lifecycle.workers.values()))
        with lifecycle._state.lock:
            for worker in lifecycle.workers.values():
                worker.handle.is_lost = True  # as where their sockets are read before anything else
            for pid in before:
                kill(pid)
        wait_for(lambda: len(pids(pool)) >= 3 and not pids(pool) & before)

        assert len(pool.stats()["workers"]) == pool.stats()["restarts"] == 3


@pytest.mark.live
def test_killed_again_and_again_while_it_starts(pool: Pool) -> None:
    wait_for(lambda: len(pids(pool)) == 2)
    for pid in pids(pool):
        kill(pid)
    for _ in range(4):
        pid = fork_server_pid(pool)
        kill(pid)
        wait_for(lambda pid=pid: pool._backend.lifecycle.fork_server is None or fork_server_pid(pool) != pid)
        kill(next(iter(pids(pool)), 2**22 + 1))

    waiting = [pool.submit("facts") for _ in range(20)]
    assert all(future.result(WAIT_S)["pid"] for future in waiting)
    assert pool.stats()["models"]["facts"]["state"] == "ok"


@pytest.mark.live
def test_killed_before_it_ever_was_ready() -> None:
    with Pool({"facts": Model(f"{HERE}:facts")}, workers=1) as pool:
        for _ in range(3):
            pid = fork_server_pid(pool)
            kill(pid)
            wait_for(lambda pid=pid: pool._backend.lifecycle.fork_server is None or fork_server_pid(pool) != pid)
        late = pool.submit("facts", deadline_s=0.05)
        assert isinstance(late.exception(WAIT_S), DeadlineExceeded)  # nobody is there to run it, and it is told in time
        assert pool.submit("facts").result(WAIT_S)["pid"]


@pytest.mark.live
def test_tasks_meet_their_deadline_while_there_is_nobody(pool: Pool) -> None:
    wait_for(lambda: len(pids(pool)) == 2)
    everybody = {fork_server_pid(pool), *pids(pool)}
    for pid in everybody:
        kill(pid)
    assert isinstance(pool.submit("facts", deadline_s=0.01).exception(WAIT_S), DeadlineExceeded)
    assert pool.submit("facts").result(WAIT_S)["pid"] not in everybody


@pytest.mark.live
def test_one_that_stands_stopped_is_replaced(pool: Pool) -> None:
    wait_for(lambda: len(pids(pool)) == 2)
    first = fork_server_pid(pool)
    kill(first, signal.SIGSTOP)
    wait_for(lambda: fork_server_pid(pool) != first)
    for pid in pids(pool):
        kill(pid)
    assert pool.submit("facts").result(WAIT_S)["pid"]


NO_FORK = """
import os
def fork(fork=os.fork):
    if os.path.exists({flag!r}):
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()
os.fork = fork
"""


@pytest.mark.live
def test_where_no_process_can_be_forked_for_a_while(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flag = tmp_path / "no more processes"
    start = f"exec({NO_FORK.format(flag=str(flag))!r}); "
    monkeypatch.setattr(fork_server, "_START", start.replace("{", "{{").replace("}", "}}") + fork_server._START)
    with Pool({"facts": Model(f"{HERE}:facts")}, workers=1) as pool:
        first, victim = fork_server_pid(pool), pool.submit("facts").result(WAIT_S)["pid"]
        flag.touch()
        kill(victim)
        wait_for(lambda: caplog.text.count("could not be made ([Errno 11] Resource temporarily unavailable)") == 2)
        assert isinstance(pool.submit("facts", deadline_s=0.05).exception(WAIT_S), DeadlineExceeded)
        waiting = pool.submit("facts")
        flag.unlink()

        assert waiting.result(WAIT_S)["pid"] != victim
        assert fork_server_pid(pool) == first and pool.stats()["restarts"] == 1


@pytest.mark.live
def test_where_no_thread_can_be_started() -> None:
    def start_thread(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    before = {child.pid for child in psutil.Process().children()}
    with pytest.MonkeyPatch.context() as patch, pytest.raises(PoolError, match="can't start new thread"):
        patch.setattr(threading, "_start_new_thread", start_thread)
        Pool({"echo": Model("tests.pool.models:echo")}, workers=2)
    assert {child.pid for child in psutil.Process().children()} <= before
    with Pool({"sleeper": Model(f"{HERE}:sleeper", limit_s=0.5)}, workers=1) as pool, pytest.MonkeyPatch.context() as patch:
        pool.submit("sleeper", 0.0).result(WAIT_S)
        patch.setattr(threading, "_start_new_thread", start_thread)

        assert "RW806" in str(pool.submit("sleeper", 60.0).exception(WAIT_S))
        assert pool.submit("sleeper", 0.0).result(WAIT_S)


def test_closing_ends_workers_that_have_outlived_it() -> None:
    with Pool({"sleeper": Model(f"{HERE}:sleeper", replicas=2)}, workers=2) as pool:
        below = wait_for(lambda: len(pids(pool)) == 2 and pids(pool))
        kill(fork_server_pid(pool))
        pool.submit("sleeper", 0.1).result(WAIT_S)
    wait_for(lambda: not [pid for pid in below if is_running(pid)], 20)  # killed, they may take a moment to be gone


SCRIPT_THAT_KILLS = """
import os, signal, time
from rankwise.pool import Model, Pool
pool = Pool({"stuck": Model("tests.pool.models:holds_the_gil")}, workers=1)
future = pool.submit("stuck", "a" * 60 + "b")
while not pool.stats()["workers"][0]["running"] == "stuck" or future.done() or not pool.stats()["workers"][0]["holds"]:
    time.sleep(0.05)
time.sleep(0.5)
worker = pool.stats()["workers"][0]["pid"]
os.kill(pool._backend.lifecycle.fork_server.process.pid, signal.SIGKILL)
print(worker, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.live
def test_a_worker_that_has_outlived_it_ends_with_the_parent_even_where_it_cannot_run_python() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT_THAT_KILLS], capture_output=True, text=True, timeout=100, cwd=Path(__file__).parents[3]
    )
    worker = int(done.stdout)

    wait_for(lambda: not is_running(worker))


@pytest.mark.live
@pytest.mark.parametrize("wish", [0.0, EXIT])
def test_processes_that_models_have_started_end_with_the_pool(wish: float) -> None:
    """Also of a worker that has ended before; not those that were given a session of their own, so that they may go on."""
    models = {name: Model("tests.pool.models:with_a_process", args=(name == "apart",)) for name in ("with us", "apart")}
    with Pool(models, workers=1) as pool:
        started = {name: pool.submit(name, np.zeros(1)).result(WAIT_S) for name in models}
        pool.submit("with us", np.full(1, wish)).exception(WAIT_S)
        assert all(map(is_running, started.values()))
    wait_for(lambda: not is_running(started["with us"]), 20)

    assert is_running(started["apart"])
    kill(started["apart"])


def test_they_do_so_too_where_the_caller_blocks_signals() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with Pool({"one": Model("tests.pool.models:with_a_process", args=(False,))}, workers=1) as pool:
            started = pool.submit("one", np.zeros(1)).result(WAIT_S)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    wait_for(lambda: not is_running(started), 20)


SCRIPT_OF_A_MODEL_THAT_PRINTS = """
import os, sys
from rankwise.pool import Model, Pool

def build():
    def run(x):
        print("from Python")
        os.write(1, b"from C")
        return x
    return run

if __name__ == "__main__":
    with Pool({"one": Model(build)}, workers=1) as pool:
        sys.exit(sum(pool.submit("one", 1).result(60) for _ in range(3)))
"""


@pytest.mark.parametrize("is_open", mostly_live([True, False]), ids=["a file", "closed"])
def test_what_models_print_goes_where_the_caller_does(tmp_path: Path, is_open: bool) -> None:
    (tmp_path / "script.py").write_text(SCRIPT_OF_A_MODEL_THAT_PRINTS)
    command = f"exec {sys.executable} {tmp_path}/script.py " + (f"> {tmp_path}/out" if is_open else ">&-")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(["sh", "-c", command], env=env, stderr=subprocess.PIPE, text=True, timeout=120, cwd=Path(__file__).parents[3])

    assert done.returncode == 3, done.stderr
    if is_open:
        printed = (tmp_path / "out").read_text()
        assert printed.count("from Python") == printed.count("from C") == 3


def test_pauses_grow_up_to_half_a_minute() -> None:
    pauses = [pause_s(failures) for failures in range(20)]

    assert pauses == sorted(pauses) and pauses[:2] == [0.0, 0.0] and pauses[-1] == 30.0
    assert np.all(np.diff(pauses) <= 20)


def test_a_worker_that_starts_has_no_number_that_a_signal_could_go_to() -> None:
    with Pool({"facts": Model(f"{HERE}:facts")}, workers=2) as pool:
        shown = [worker["pid"] for worker in pool.stats()["workers"]]
        looked = [_text([pool.stats()])]
        wait_for(lambda: len(pids(pool)) == 2)

    assert shown == [None, None]
    assert "worker 1 (cpu): starts" in looked[0] and "None" not in looked[0]


def test_a_caller_that_ignores_its_childrens_ends_loses_only_the_worker_that_ended() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with Pool({"moody": Model("tests.pool.models:Moody", replicas=1)}, workers=1) as pool:
            error = pool.submit("moody", np.full(2, EXIT, np.float32)).exception(120)
            doubled = pool.submit("moody", np.ones(2, np.float32)).result(120)
            ended = pool.stats()["restarts"]
    finally:
        signal.signal(signal.SIGCHLD, before)

    assert "exit code 3" in str(error) and doubled.tolist() == [2.0, 2.0]
    assert ended == 2


def test_a_pool_that_cannot_make_a_single_worker_says_so_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more_files(*_: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    before = {child.pid for child in psutil.Process().children()}
    monkeypatch.setattr(Lifecycle, "_start_worker", no_more_files)

    with pytest.raises(PoolError, match="Too many open files") as raised:
        Pool({"echo": Model("tests.pool.models:echo")}, workers=2)

    assert raised.value.finding.code == "RW809"
    assert {child.pid for child in psutil.Process().children()} <= before


def test_a_worker_that_can_never_be_made_beside_others_is_tried_less_and_less_often() -> None:
    good, bad = Seat("cpu", 1), Seat("cpu", 1, (1,))
    tries: list[float] = []
    now = 0.0

    def start(seat: Seat) -> None:
        if seat is bad:
            tries.append(now)
            raise OSError(errno.EMFILE, "Too many open files")

    state: Any = SimpleNamespace(scheduler=None, settings=SimpleNamespace(plan=SimpleNamespace(seats=[good, bad])), is_closed=False)
    starter = Lifecycle(state, listener=None, events=None)  # type: ignore[arg-type]
    starter.fork_server, starter._start_worker = object(), start  # type: ignore[assignment, method-assign]
    for second in range(150):
        now = float(second)
        starter.go_on(now)

    assert tries == [0.0, 5.0, 15.0, 45.0, 75.0, 105.0, 135.0]


@pytest.mark.live
def test_a_seat_on_which_no_worker_gets_ready_does_not_end_a_pool_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    ask, asked = ForkServer.ask_for, []

    def ask_for(self: ForkServer, handle: Any, *rest: Any) -> None:
        asked.append(handle.number)
        if handle.number > 1:
            handle.seat = replace(handle.seat, cpus=(4095,))  # a core that is not there
        ask(self, handle, *rest)

    monkeypatch.setattr(ForkServer, "ask_for", ask_for)
    with Pool({"echo": Model("tests.pool.models:echo", replicas=1)}, workers=2) as pool:
        pool.submit("echo", np.ones(2)).result(120)
        wait_for(lambda: len(asked) > 5, 120)

        assert pool.submit("echo", np.ones(2)).result(120).tolist() == [1.0, 1.0]


def test_a_pool_that_had_a_worker_tries_again_where_none_gets_ready_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    ask, asked = ForkServer.ask_for, []

    def ask_for(self: ForkServer, handle: Any, *rest: Any) -> None:
        asked.append(handle.number)
        if 1 < handle.number < 6:
            handle.seat = replace(handle.seat, cpus=(4095,))  # a core that is not there, for now
        ask(self, handle, *rest)

    monkeypatch.setattr(ForkServer, "ask_for", ask_for)
    monkeypatch.setattr(Lifecycle, "_start_worker", started_on(Seat("cpu", 1)))
    with Pool({"echo": Model("tests.pool.models:echo")}, workers=1) as pool:
        pool.submit("echo", np.ones(2)).result(120)
        os.kill(pids(pool).pop(), signal.SIGKILL)
        late = pool.submit("echo", np.ones(2), deadline_s=0.01)

        assert pool.submit("echo", np.ones(2)).result(120).tolist() == [1.0, 1.0]
        assert isinstance(late.exception(120), DeadlineExceeded)
    assert len(asked) == 6


def started_on(seat: Seat) -> Callable[..., None]:
    """Whatever seat a worker that ended had."""
    start = Lifecycle._start_worker
    return lambda lifecycle, _: start(lifecycle, seat)
