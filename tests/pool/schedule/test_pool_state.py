"""Where tasks begin and end: cancelled, expired, refused, handed over, closed. Without a process: workers are what a test says they do."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from types import SimpleNamespace
from typing import Any

import pytest

from rankwise.pool.errors import DeadlineExceeded, ModelUnavailable, PoolClosed, PoolFull, model_raised
from rankwise.pool.memory.shared_memory import PAGE
from rankwise.pool.schedule.pool_state import PoolState, Settings, hand_over
from rankwise.pool.schedule.state import Holding, ModelState, Order, PoolPlan, WorkerState
from rankwise.pool.schedule.tasks import Chunk, Task, TaskFuture
from tests.pool.schedule.test_scheduler import state


class Page:
    """What a worker shows of itself: which order it runs, and which request of a chunk."""

    def __init__(self) -> None:
        self.running, self.item, self.was_cut = (0, 0), 0, list[int]()

    def cut(self, serial: int) -> None:
        self.was_cut.append(serial)


class Owner:
    """The pool, as far as its futures ask."""

    def __init__(self, pool: PoolState) -> None:
        self.withdraw, self.forget = pool.withdraw, pool.forget

    def help(self, task: Task, timeout: float | None) -> float | None:
        return timeout


class Scene:
    """A pool of two models; `budgets` by device."""

    def __init__(self, **budgets: int) -> None:
        self.model, self.other = state(1), state(2)
        settings = Settings(2, 1 << 20, 1 << 20, None, PoolPlan([], "as the test wants it"), budgets, 1)
        self.pool = PoolState([self.model, self.other], settings)
        self.owner: Any = Owner(self.pool)

    def task(self, model: ModelState | None = None, slots: tuple[Any, ...] = (), **facts: Any) -> TaskFuture:
        """One that waits."""
        task = TaskFuture(model or self.model, (("=", 1), 1, slots, True), 10.0, self.owner)
        for name, value in facts.items():
            setattr(task, name, value)
        self.pool.scheduler.add(task)
        return task

    def worker(self) -> WorkerState:
        worker = WorkerState(1, "cpu", is_ready=True, handle=SimpleNamespace(page=Page(), pid=7))
        worker.holds[1] = Holding(self.model, worker, 10, is_loading=False)
        self.pool.scheduler.workers[1] = worker
        return worker

    def run(self, worker: WorkerState, *tasks: Task) -> Order:
        """The worker has them, and runs them."""
        for task in tasks:
            if isinstance(task, Chunk):
                task.has_begun = True
            else:
                assert task.model.queue.pop() is task and self.pool.begins(task, 11.0)
        order = self.pool.scheduler.begin(worker, self.model, list(tasks), 0.001, self.pool.scheduler.next_serial())
        worker.handle.page.running = order.serial, 1
        return order


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.pool.arena.close()


# -- ends of a task ------------------------------------------------------------------------------------------------------------


def test_a_task_whose_time_is_over_never_begins(scene: Scene) -> None:
    task, later = scene.task(deadline=12.0), scene.task(deadline=12.5)

    assert not scene.pool.begins(task, 12.0) and scene.pool.begins(later, 12.0)
    scene.pool.settle()

    with pytest.raises(DeadlineExceeded, match="2 s"):
        task.result(0)
    assert scene.model.queue.waiting == 1 and scene.model.counted.expired == 1 and not later.done()
    scene.pool.expire(task)
    assert scene.model.counted.expired == 1, "not twice"


def test_a_cancelled_task_gives_its_place_away_at_once(scene: Scene) -> None:
    running, task = scene.task(), scene.task()
    scene.run(scene.worker(), running)

    assert task.cancel() and not running.cancel()

    assert scene.model.queue.waiting == 0 and scene.model.counted.cancelled == 1
    assert not scene.pool.begins(task, 11.0)
    with pytest.raises(CancelledError):
        task.result(0)
    assert scene.pool.has_open_tasks(), "the other one runs"


def test_the_input_is_held_until_the_task_is_over(scene: Scene) -> None:
    slot = scene.pool.arena.take(PAGE)
    assert slot is not None
    task = scene.task(slots=(slot,))
    scene.pool.arena.hold(slot)
    shared = scene.task(slots=(slot,))
    assert scene.pool.input_bytes() == PAGE, "both have the same"

    scene.run(scene.worker(), task, shared)
    assert scene.pool.input_bytes() == PAGE
    scene.pool.done(task, 1)
    assert scene.pool.input_bytes() == PAGE
    scene.pool.conclude(shared, False, ValueError("bad"))
    scene.pool.settle()

    assert scene.pool.input_bytes() == 0 and scene.pool.arena.used_bytes() == 0
    assert task.result(0) == 1 and isinstance(shared.exception(0), ValueError)


def test_callbacks_run_without_the_lock_and_one_that_cannot_be_told_keeps_nobody_else_waiting(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []
    task = scene.task()
    task.add_done_callback(lambda done: seen.append((done.result(), scene.pool.lock.acquire(blocking=False))))
    cancelled, waiting = Future[None](), Future[None]()
    cancelled.cancel()
    cancelled.set_running_or_notify_cancel()
    scene.model.awaiting_load = [cancelled, waiting]
    scene.run(scene.worker(), task)

    with scene.pool.lock:
        scene.pool.tell_loaded(scene.model)
        scene.pool.done(task, 5)
        assert not waiting.done() and not seen
    with caplog.at_level(logging.CRITICAL, "rankwise.pool"):
        scene.pool.settle()

    assert waiting.done() and seen == [(5, True)]
    scene.pool.lock.release()


def test_a_callback_ends_no_thread_of_the_pool_but_may_end_the_callers(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def settle() -> Future[None]:
        ending, other = Future[None](), Future[None]()
        ending.add_done_callback(lambda _: sys.exit())
        scene.model.awaiting_load = [ending, other]
        scene.pool.tell_loaded(scene.model)
        scene.pool.settle()
        return other

    with pytest.raises(SystemExit):
        settle()
    monkeypatch.setattr(threading.current_thread(), "name", "rankwise-ray-1")
    assert settle().done()


# -- what is refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("why", "error"), [("full", PoolFull), ("closing", PoolClosed), ("broken", ModelUnavailable)])
def test_what_is_not_taken_is_told_why_and_is_over(scene: Scene, why: str, error: type[Exception]) -> None:
    task = TaskFuture(scene.model, (("=", 1), 1, (), True), 10.0, scene.owner)
    if why == "closing":
        scene.pool.is_closing = True
    elif why == "broken":
        scene.model.broken = ModelUnavailable(model_raised("m1", "no such file").finding)

    with pytest.raises(error):
        scene.pool.refuse(task)

    assert task.is_over and scene.model.counted.rejected == (why == "full")


def test_a_chunk_that_is_not_taken_can_be_tried_again(scene: Scene) -> None:
    chunk = Chunk(scene.model, (scene.model, None, None, None, True), scene.owner)
    chunk.add(("=", 1), 10, ())

    with pytest.raises(PoolFull):
        scene.pool.refuse(chunk)

    assert not chunk.is_over and chunk.count == 1


def test_a_model_that_cannot_be_had_fails_all_that_wait_and_says_it_to_who_loads_it(scene: Scene) -> None:
    task, other, load = scene.task(), scene.task(scene.other), Future[None]()
    scene.model.awaiting_load.append(load)
    error = ModelUnavailable(model_raised("m1", "no such file").finding)

    scene.pool.break_model(scene.model, error)
    scene.pool.settle()

    assert task.exception(0) is error and load.exception(0) is error
    assert not other.done() and scene.model.counted.failed == 1


def test_a_model_that_is_larger_than_its_device_is_never_tried() -> None:
    large, small, on_gpu = state(1, nbytes=11), state(2, nbytes=10), state(3, nbytes=11, device="cuda:1")
    budgets = {"cpu": 10, "cuda:0": 10, "cuda:1": 20}
    pool = PoolState([large, small, on_gpu], Settings(2, 1 << 20, 1 << 20, None, PoolPlan([], ""), budgets, 1))
    pool.add_model(added := state(4, nbytes=21, device="cuda"))

    assert isinstance(large.broken, ModelUnavailable) and small.broken is None and on_gpu.broken is None
    assert isinstance(added.broken, ModelUnavailable), "no GPU has room for it"
    pool.arena.close()


# -- a model that is replaced or removed ---------------------------------------------------------------------------------------


def test_what_waits_for_a_model_that_is_replaced_goes_to_the_new_one(scene: Scene) -> None:
    running, waiting, worker = scene.task(), scene.task(), scene.worker()
    scene.run(worker, running)
    new = state(3)
    new.name, new.is_current = scene.model.name, False
    scene.pool.add_model(new)

    scene.pool.remove_model(scene.model, new)

    assert waiting.model is new and new.queue.all() == [waiting] and new.is_current and not scene.model.is_current
    assert scene.pool.forget_departed() == [], "a worker still runs it"
    late = TaskFuture(scene.model, (("=", 1), 1, (), True), 10.0, scene.owner)
    hand_over(late)
    assert late.model is new
    assert new.counted is scene.model.counted, "the numbers go on"

    worker.holds.clear()
    assert scene.pool.forget_departed() == [scene.model]
    assert scene.model.number not in scene.pool.scheduler.models and isinstance(scene.model.broken, PoolClosed)
    assert scene.pool.counters.of(new.name) is new.counted


def test_a_removed_model_does_first_what_was_submitted(scene: Scene) -> None:
    task, load = scene.task(), Future[None]()
    scene.model.awaiting_load.append(load)

    scene.pool.remove_model(scene.model, None)
    scene.pool.settle()

    assert isinstance(load.exception(0), PoolClosed) and not task.done()
    assert scene.pool.forget_departed() == []
    task.cancel()
    assert scene.pool.forget_departed() == [scene.model] and scene.pool.forget_departed() == []
    assert list(scene.pool.snapshot()["models"]) == ["m2"]


# -- chunks --------------------------------------------------------------------------------------------------------------------


def chunk_of(scene: Scene, count: int) -> Chunk:
    chunk = Chunk(scene.model, (scene.model, None, None, None, True), scene.owner)
    for i in range(count):
        chunk.add(("=", i), 10, ())
    return chunk


def test_of_a_chunk_whose_worker_ended_the_one_that_ran_is_told_from_the_others(scene: Scene) -> None:
    chunk = chunk_of(scene, 4)
    assert not chunk.take(0, ["first"], {})

    culprits, others = scene.pool.dissolve(chunk, running=2)

    assert [task.node for task in culprits] == [("=", 2)] and [task.node for task in others] == [("=", 1), ("=", 3)]
    assert chunk in scene.pool.divided and scene.pool.has_open_tasks()
    scene.pool.end_parts(chunk)
    assert all(task.is_over for task in (*culprits, *others)) and not scene.pool.has_open_tasks()


def test_cancelling_a_chunk_that_runs_takes_back_what_has_not_begun(scene: Scene) -> None:
    chunk, worker = chunk_of(scene, 4), scene.worker()
    chunk.worker = worker
    order = scene.run(worker, chunk)

    scene.pool.withdraw(chunk)

    assert worker.handle.page.was_cut == [order.serial] and chunk.is_over


# -- the end of the pool -------------------------------------------------------------------------------------------------------


def test_closing_waits_for_what_runs_only_so_long_and_leaves_no_future_open(scene: Scene) -> None:
    running, waiting = scene.task(), scene.task()
    scene.run(scene.worker(), running)

    scene.pool.close(cancel=True, timeout=0.01)

    assert isinstance(waiting.exception(0), PoolClosed) and isinstance(running.exception(0), PoolClosed)
    assert scene.pool.is_closed and not scene.pool.has_open_tasks()


def test_closing_gives_back_what_a_chunk_has_not_begun(scene: Scene) -> None:
    chunk, worker = chunk_of(scene, 4), scene.worker()
    order = scene.run(worker, chunk)
    worker.handle.page.item = 1

    scene.pool.close(cancel=True, timeout=0)

    assert worker.handle.page.was_cut == [order.serial]
    assert [task.node for task in chunk.parts] == [] and chunk.is_over


def test_a_forked_child_has_no_pool_whoever_held_its_locks(scene: Scene) -> None:
    scene.pool.lock.acquire()
    scene.pool.arena.lock.acquire()

    scene.pool.forget_after_fork()

    assert scene.pool.lock.acquire(blocking=False)
    scene.pool.lock.release()
    with pytest.raises(PoolClosed, match="fork"):
        scene.pool.arena.take(PAGE)
    with pytest.raises(PoolClosed, match="fork"):
        scene.pool.refuse(TaskFuture(scene.model, (("=", 1), 1, (), True), 10.0, scene.owner))


def test_what_is_shown_is_what_there_is(scene: Scene) -> None:
    running = scene.task()
    scene.task()
    scene.run(scene.worker(), running)
    scene.other.broken = ModelUnavailable(model_raised("m2", "no such file").finding)

    shown = scene.pool.snapshot()

    assert [(shown["models"][name][key]) for name in ("m1", "m2") for key in ("queued", "running", "replicas", "state")] == [
        *(1, 1, 1, "ok"),
        *(0, 0, 0, "failed"),
    ]
    (worker,) = shown["workers"]
    assert (worker["running"], worker["inflight"], worker["holds"], worker["memory_bytes"]) == ("m1", 1, ["m1"], 10)
    assert worker["running_s"] > 0 and shown["plan"] == "as the test wants it"
