"""Handlers of signals run between any two steps of the caller's thread: one that raises loses nothing, and one may close the pool."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rankwise.pool import Model, Pool, PoolClosed, processes  # noqa: E402
from rankwise.pool.transport.answers import Answers  # noqa: E402
from rankwise.pool.transport.sender import Sender  # noqa: E402

LONG_S = 60
HERE = "tests.pool.transport.test_listener"


@pytest.fixture
def pool() -> Iterator[Pool]:
    models = {"double": Model(f"{HERE}:double"), "batched": Model(f"{HERE}:double", max_batch=4), "sleepy": Model(f"{HERE}:sleepy")}
    with Pool(models, workers=1) as pool:
        for name in models:
            pool.load(name).result(LONG_S)
        yield pool


@contextmanager
def alarm(after_s: float, handler: Callable[..., Any]) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def too_late(*_: object) -> None:
    raise TimeoutError("of the caller's own alarm")


def test_a_timeout_of_the_callers_alarm_reaches_it_and_the_worker_goes_on(pool: Pool) -> None:
    pid = pool.stats()["workers"][0]["pid"]
    future = pool.submit("sleepy", torch.tensor([1.0]))

    with alarm(0.2, too_late), pytest.raises(TimeoutError, match="own alarm"):
        future.result(LONG_S)

    assert float(future.result(LONG_S)) == 1.0
    assert float(pool.submit("double", torch.ones(1)).result(LONG_S)) == 2.0 and pool.stats()["workers"][0]["pid"] == pid


def test_a_timeout_while_a_stream_waits_for_a_batch_reaches_the_caller(pool: Pool) -> None:
    pool.submit("sleepy", torch.tensor([1.0]))  # the only worker is busy

    with alarm(0.2, too_late), pytest.raises(TimeoutError, match="own alarm"):
        list(pool.map("batched", [torch.ones(1, 2)] * 8))

    assert [float(y[0, 0]) for y in pool.map("batched", [torch.ones(1, 2)] * 3)] == [2.0] * 3


@pytest.mark.parametrize("cancel", [False, True])
def test_a_handler_may_close_the_pool_its_thread_waits_for(pool: Pool, cancel: bool) -> None:
    future, waiting = pool.submit("sleepy", torch.tensor([0.5])), pool.submit("double", torch.ones(1))

    with alarm(0.1, lambda *_: pool.close(cancel=cancel)):
        assert float(future.result(LONG_S)) == 0.5

    assert pool.is_closed and (isinstance(waiting.exception(1), PoolClosed) or float(waiting.result(1)) == 2.0)


def test_a_handler_may_close_the_pool_while_an_ensemble_is_under_way(pool: Pool) -> None:
    future, whole = pool.submit("sleepy", torch.tensor([0.5])), pool.ensemble(["double", "sleepy"]).submit(torch.zeros(1))

    with alarm(0.1, lambda *_: pool.close()):
        assert float(future.result(LONG_S)) == 0.5

    assert pool.is_closed and float(whole.result(LONG_S)) == 0.0


@pytest.mark.parametrize("close", [Pool.close, Pool.__del__], ids=["a handler closes it", "the garbage collector finds it"])
@pytest.mark.parametrize("at_work_on", ["state", "arena"])
def test_a_pool_may_end_in_the_middle_of_a_step_of_its_own(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, at_work_on: str, close: Callable[[Pool], None]
) -> None:
    monkeypatch.setattr(processes, "_STEP_S", 0.1)
    future, left = pool.submit("sleepy", torch.tensor([0.25])), threading.Event()

    def interrupted() -> None:
        with getattr(pool._backend, at_work_on).lock:
            close(pool)
        left.set()

    threading.Thread(target=interrupted, daemon=True).start()

    assert left.wait(LONG_S) and float(future.result(LONG_S)) == 0.25
    monkeypatch.undo()
    pool.close()
    assert pool.is_closed


@pytest.mark.parametrize(
    ("kind", "step"), [(Answers, "_take_order"), (Sender, "_send_orders")], ids=["an answer is taken in", "orders are sent"]
)
def test_an_interrupt_in_the_middle_of_a_step_loses_no_task(pool: Pool, monkeypatch: pytest.MonkeyPatch, kind: type, step: str) -> None:
    whole = getattr(kind, step)
    left, futures = [KeyboardInterrupt()], []

    def interrupted(*given: Any) -> Any:
        if left and threading.current_thread() is threading.main_thread():
            raise left.pop()
        return whole(*given)

    monkeypatch.setattr(kind, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        while left:  # until it was this thread that did it
            futures.append(pool.submit("double", torch.ones(1), priority=1))
            futures[-1].result(LONG_S)

    futures.append(pool.submit("double", torch.ones(1)))
    assert [float(future.result(LONG_S)) for future in futures] == [2.0] * len(futures)
    pool.close()  # which waits for all tasks, also for one whose future nobody was given


def test_a_forked_child_does_not_wait_for_results_of_its_parent(pool: Pool) -> None:
    futures = [pool.submit("sleepy", torch.tensor([0.5])) for _ in range(3)]
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        refused = 0
        for future in futures:
            try:
                future.result()
            except PoolClosed:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert [float(future.result(LONG_S)) for future in futures] == [0.5] * 3


def test_a_forked_child_is_told_though_another_thread_held_the_locks(pool: Pool) -> None:
    told, tell = os.pipe()
    with pool._backend.state.lock, pool._backend.arena.lock:  # type: ignore[attr-defined]
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                pool.submit("double", torch.ones(1))
            except PoolClosed as error:
                pool.stats()
                os.write(tell, b"closed" if "another process" in str(error) else b"")
            finally:
                os._exit(0)
    os.close(tell)
    os.waitpid(child, 0)

    assert os.read(told, 10) == b"closed"
    os.close(told)
