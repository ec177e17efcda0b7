"""Bounded queues, deadlines, cancellation, priorities, budgets: the pool says no in time, and says why."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import pytest

from rankwise.errors import RankwiseError, UsageError
from rankwise.pool import DeadlineExceeded, Model, ModelUnavailable, Pool, PoolClosed, PoolError, PoolFull
from rankwise.pool.errors import deadline_exceeded, missing_main_guard, no_worker, pool_closed, pool_full

HERE = "tests.pool.models"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    models = {
        "sleeper": Model(f"{HERE}:sleeper", replicas=1),
        "echo": Model(f"{HERE}:echo", device="cpu"),
        "small": Model(f"{HERE}:weighty", args=(2,)),
        "medium": Model(f"{HERE}:weighty", args=(6,)),
        "large": Model(f"{HERE}:weighty", args=(20,)),
    }
    with Pool(models, workers=1, max_queue=8, memory="10MB") as pool:
        pool.submit("sleeper", 0.0).result(60)
        yield pool


def code_of(error: BaseException | None) -> str:
    assert isinstance(error, RankwiseError), error
    return error.finding.code


def test_a_full_queue_refuses_at_once_and_keeps_what_it_has(pool: Pool) -> None:
    futures = [pool.submit("sleeper", 1.5)]
    with pytest.raises(PoolFull) as refusal:
        for _ in range(20):
            futures.append(pool.submit("sleeper", 0.001))

    assert not futures[0].done()
    assert code_of(refusal.value) == "RW801"
    assert len([future.result(20) for future in futures]) >= 8


def test_a_task_past_its_deadline_never_starts(pool: Pool) -> None:
    first = pool.submit("sleeper", 1.5)
    late = pool.submit("sleeper", 0.0, "late", deadline_s=0.1)

    error = late.exception(10)

    assert isinstance(error, DeadlineExceeded) and code_of(error) == "RW803" and isinstance(error, TimeoutError)
    assert "had not started" in str(error)
    assert not first.done()  # told when it passed, not when it would have been its turn
    assert first.result(10)[2] is None


def test_a_running_task_past_its_deadline_fails_while_its_worker_goes_on(pool: Pool) -> None:
    assert isinstance(pool.submit("sleeper", 0.3, deadline_s=0.1).exception(10), DeadlineExceeded)
    assert pool.submit("sleeper", 0.0, "next").result(10)[2] == "next"


def test_a_cancelled_task_does_not_run_and_frees_its_place() -> None:
    with Pool({"sleeper": Model(f"{HERE}:sleeper")}, workers=1, max_queue=8) as pool:
        pool.submit("sleeper", 0.05).result(60)  # all it has learned: these take too long to wait inside a worker
        first = pool.submit("sleeper", 0.2)
        waiting = [pool.submit("sleeper", 0.0) for _ in range(8)]
        assert all(future.cancel() for future in waiting)

        more = [pool.submit("sleeper", 0.0, i) for i in range(8)]

        assert [future.result(10)[2] for future in more] == list(range(8))
        assert not first.cancel()
        with pytest.raises(CancelledError):
            waiting[0].result(1)


def test_higher_priorities_go_first() -> None:
    with Pool({"sleeper": Model(f"{HERE}:sleeper")}, workers=1, max_queue=8) as pool:
        pool.submit("sleeper", 0.05).result(60)  # all it has learned: these take too long to wait inside a worker
        first = pool.submit("sleeper", 0.1)
        low = [pool.submit("sleeper", 0.0, priority=-1) for _ in range(2)]
        usual = [pool.submit("sleeper", 0.0) for _ in range(2)]
        high = [pool.submit("sleeper", 0.0, priority=5) for _ in range(2)]

        began = [[future.result(10)[0] for future in group] for group in ([first], high, usual, low)]

        flat = [moment for group in began for moment in group]
        assert flat == sorted(flat)


def test_models_leave_when_another_needs_the_room(pool: Pool) -> None:
    x = np.ones(2, np.float32)
    for name in ("small", "medium", "small", "medium"):
        assert pool.submit(name, x).result(20).tolist() == [1.0, 1.0]
    pool.submit("echo", 1).result(20)

    stats = pool.stats()["models"]
    assert stats["small"]["memory_bytes"] == 2_000_000
    assert stats["small"]["loads"] == 1 and stats["medium"]["evictions"] == 0  # both fit
    assert stats["large"]["loads"] == 0


def test_what_a_build_carries_along_takes_its_room_on_the_lane_once() -> None:
    x, baggage = np.ones(2, np.float32), b"b" * 1_000_000
    models = {name: Model(f"{HERE}:weighty", args=(6, baggage)) for name in "ab"}
    with Pool(models, workers=1, memory="10MB", lane_bytes="9MiB") as pool:
        for name in "abab" * 3:  # each has to leave for the other
            pool.submit(name, x).result(60)
        stats = pool.stats()

    assert stats["models"]["a"]["loads"] == 6
    assert 2_000_000 < stats["lanes"]["inputs_used_bytes"] < 3_000_000


def test_a_build_that_carries_too_much_is_refused_at_once() -> None:
    with pytest.raises(UsageError) as error:
        Pool({"a": Model(f"{HERE}:weighty", args=(1, b"b" * 3_000_000))}, workers=1, lane_bytes="2MB")

    assert "3 MiB" in str(error.value) and "weights=" in "".join(error.value.finding.next)


def test_a_model_that_can_never_fit_is_a_finding(pool: Pool) -> None:
    error = pool.submit("large", np.ones(2, np.float32)).exception(20)

    assert isinstance(error, ModelUnavailable) and code_of(error) == "RW808"
    assert "20.0 MB" in str(error) and "10.0 MB" in str(error)


def test_an_unknown_model_names_the_known_ones(pool: Pool) -> None:
    with pytest.raises(UsageError) as error:
        pool.submit("bert", 1)
    assert "sleeper" in error.value.finding.why


LOCK = threading.Lock()


@pytest.mark.parametrize(
    "model",
    [
        Model("no colon here"),
        Model("nowhere.pt2"),
        Model(3),  # type: ignore[arg-type]
        Model("m:f", weights="nowhere.pt"),
        Model("m:f", weights=""),
        Model("m:f", max_batch=0),
        Model("m:f", device="tpu"),
        Model("m:f", replicas=0),
        Model("m:f", memory="lots"),
        Model(lambda: LOCK),  # not even by value
    ],
)
def test_what_is_wrong_before_anything_runs_is_a_usage_error(model: Model) -> None:
    with pytest.raises(UsageError):
        Pool({"m": model}, workers=1)


def test_a_closed_pool_takes_nothing_and_closing_waits_for_what_it_has() -> None:
    pool = Pool({"sleeper": Model(f"{HERE}:sleeper")}, workers=1)
    future = pool.submit("sleeper", 0.05, "done")
    pool.close()
    pool.close()

    assert future.result(0)[2] == "done"
    with pytest.raises(PoolClosed) as error:
        pool.submit("sleeper", 0.0)
    assert code_of(error.value) == "RW802"


def test_without_torch_in_the_workers_all_tasks_fail_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('this torch is broken')\n")
    monkeypatch.syspath_prepend(tmp_path)  # workers look where the caller does
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # for a start of its own: processes that are kept for tests have torch already
    with Pool({"echo": Model(f"{HERE}:echo")}, workers=1) as pool:
        future = None
        with pytest.raises(PoolError) as error:
            future = pool.submit("echo", 1)
            future.result(30)
    assert code_of(error.value) == "RW809"
    assert "this torch is broken" in "".join(traceback.format_exception(error.value))


@pytest.mark.parametrize(
    "error", [pool_full("m", 3, "tasks"), pool_closed(), deadline_exceeded("m", 1.0, False), no_worker("x"), missing_main_guard()]
)
def test_a_traceback_shows_why_and_what_to_do(error: PoolError) -> None:
    text = "".join(traceback.format_exception(error))
    assert error.finding.next and all(f"next   {step}" in text for step in error.finding.next)
    assert not error.finding.why or f"why    {error.finding.why}" in text


def test_a_script_without_a_main_guard_gets_a_helpful_error(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import rankwise\n"
        "def build():\n    import torch\n    return torch.nn.Identity()\n"
        "pool = rankwise.Pool({'m': rankwise.Model(build)}, workers=1)\n"
        "try:\n    print(pool.submit('m', 1).result(60))\n"
        "except rankwise.RankwiseError as error:\n    print(error.finding.summary, error.finding.why)\n"
        "pool.close()\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100)

    assert "RW810" in done.stdout + done.stderr or "whenever it is imported" in done.stdout
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("replaced", ["select", "socket"])
def test_green_threads_are_refused(monkeypatch: pytest.MonkeyPatch, replaced: str) -> None:
    if replaced == "select":
        monkeypatch.delattr(select, "epoll")
    else:
        monkeypatch.setattr(socket.socket, "__module__", "gevent._socket3")
    with pytest.raises(UsageError, match="gevent"):
        Pool({"echo": Model(f"{HERE}:echo")}, workers=1)


@pytest.mark.parametrize(("name", "value"), [("frozen", True), ("executable", "")])
def test_a_program_without_an_interpreter_is_refused_before_it_starts_itself_again(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    monkeypatch.setattr(sys, name, value, raising=False)
    with pytest.raises(UsageError, match="frozen"):
        Pool({"echo": Model(f"{HERE}:echo")}, workers=1)
    with Pool({"echo": Model(f"{HERE}:echo")}, workers=0) as pool:
        assert pool.submit("echo", 1).result() == 1


APP = """
import psutil, rankwise
def build():
    return lambda x: [len(psutil.Process().children()), pool.submit("m2", x).result()]
def build2():
    return lambda x: x + 1
pool = rankwise.Pool({"m": rankwise.Model(build), "m2": rankwise.Model("app:build2")}, workers=1)
"""


def test_workers_that_import_a_servers_app_start_no_workers(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    command = [sys.executable, "-c", "import app; print(app.pool.submit('m', 1).result(60))"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)

    assert done.stdout.strip() == "[0, 2]", done.stderr


@pytest.mark.live
def test_the_same_script_with_a_guard_works(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import rankwise\n"
        "def build():\n    import torch\n    return torch.nn.Identity()\n"
        "if __name__ == '__main__':\n"
        "    with rankwise.Pool({'m': rankwise.Model(build)}, workers=1) as pool:\n"
        "        print(pool.submit('m', 41).result(60) + 1)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100)

    assert done.stdout.strip() == "42", done.stderr
