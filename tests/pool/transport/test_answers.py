"""What becomes of a worker's messages: each answer goes to its own task, once; models become loaded, or broken, or are tried again."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from rankwise.pool.errors import MAX_BUILDS, ModelUnavailable
from rankwise.pool.memory.encoding import EVEN, UNEVEN
from rankwise.pool.memory.shared_memory import PAGE
from rankwise.pool.schedule.state import Load, Order, WorkerState
from rankwise.pool.schedule.tasks import TaskFuture
from rankwise.pool.transport.answers import Answers, separate
from rankwise.pool.transport.connection import HALVED, KEPT
from tests.pool.schedule.test_pool_state import Scene, scene

__all__ = ["scene"]


class Reader:
    """Gives what stands in a worker's answer; notes what was read."""

    def __init__(self) -> None:
        self.read: list[Any] = []

    def value(self, task: Any, data: Any) -> Any:
        self.read.append(data)
        if isinstance(data, BaseException):
            raise data
        return data


def answers_of(scene: Scene) -> tuple[Answers, WorkerState, list[Any]]:
    """A worker that holds the model, and what the pool decides to do."""
    worker, actions = scene.worker(), list[Any]()
    worker.handle.reader, worker.handle.killed = Reader(), 0

    def kill() -> None:
        worker.handle.killed += 1

    worker.handle.kill, worker.handle.has_answered = kill, False
    return Answers(scene.pool, lambda wanted, now: actions.extend(wanted)), worker, actions


def error(text: str) -> tuple[bytes, str]:
    return pickle.dumps(ValueError(text)), f"ValueError: {text}"


def batch(scene: Scene, worker: WorkerState, *rows: int) -> tuple[Order, list[TaskFuture]]:
    """Tasks of so many rows, which run together."""
    tasks = [scene.task(rows=number, key="k") for number in rows]
    return scene.run(worker, *tasks), tasks


def test_each_answer_goes_to_its_own_task(scene: Scene) -> None:
    answers, worker, _ = answers_of(scene)
    order, tasks = batch(scene, worker, 1, 1, 1)

    answers.take(
        worker, (order.serial, 2_000_000, [(True, "a"), (False, error("bad row")), (True, OSError("no such class here"))], 0), 12.0
    )
    scene.pool.settle()

    assert tasks[0].result(0) == "a" and worker.inflight == {} and worker.handle.has_answered
    assert isinstance(tasks[1].exception(0), ValueError) and "bad row" in str(tasks[1].exception(0))
    assert isinstance(tasks[2].exception(0), OSError), "what cannot be read here is an error of that task alone"
    counted = scene.model.counted
    assert (counted.completed, counted.failed) == (1, 2) and scene.model.order_s == pytest.approx(0.002)


def test_an_answer_nobody_waits_for_is_read_so_that_its_room_is_free(scene: Scene) -> None:
    answers, worker, _ = answers_of(scene)
    order, (task, other) = batch(scene, worker, 1, 1)
    scene.pool.fail(task, ValueError("too late"))

    answers.take(worker, (order.serial, 1, [(True, "late"), (True, "b")], 0), 12.0)
    answers.take(worker, (order.serial, 1, [(True, "twice"), (False, error("x"))], 0), 12.0)
    scene.pool.settle()

    assert worker.handle.reader.read == ["late", "b", "twice"] and other.result(0) == "b"
    assert isinstance(task.exception(0), ValueError)


def test_what_a_signals_handler_raises_in_the_middle_leaves_the_order_with_the_worker(scene: Scene) -> None:
    answers, worker, _ = answers_of(scene)
    order, _ = batch(scene, worker, 1)

    with pytest.raises(KeyboardInterrupt):
        answers.take(worker, (order.serial, 1, [(True, KeyboardInterrupt())], 0), 12.0)

    assert worker.inflight == {order.serial: order}


def test_an_input_that_the_model_keeps_is_not_given_to_others(scene: Scene) -> None:
    answers, worker, _ = answers_of(scene)
    for flags in (0, KEPT):
        slot = scene.pool.arena.take(PAGE)
        task = scene.task(slots=(slot,))
        order = scene.run(worker, task)
        answers.take(worker, (order.serial, 1, [(True, "a")], flags), 12.0)
        assert scene.pool.arena.used_bytes() == (PAGE if flags else 0)


def test_where_memory_ran_out_batches_are_half_as_large(scene: Scene) -> None:
    answers, worker, _ = answers_of(scene)
    scene.model.max_batch = 64
    order, _ = batch(scene, worker, 1, 1, 1, 1, 1)

    answers.take(worker, (order.serial, 1, [(True, "a")] * 5, HALVED), 12.0)

    assert scene.model.max_batch == 2


def test_a_joined_answer_is_cut_into_the_rows_of_each(scene: Scene) -> None:
    answers, worker, _ = answers_of(scene)
    order, tasks = batch(scene, worker, 1, 2, 1)
    order.is_joined = True

    answers.take(worker, (order.serial, 1, [(True, np.arange(4))], 0), 12.0)
    scene.pool.settle()

    assert [task.result(0).tolist() for task in tasks] == [[0], [1, 2], [3]]


def test_one_that_spoils_a_joined_answer_spoils_only_its_own(scene: Scene) -> None:
    answers, worker, _ = answers_of(scene)
    order, tasks = batch(scene, worker, 1, 1, 1)
    order.is_joined = True
    scene.pool.fail(tasks[2], ValueError("too late"))

    answers.take(worker, (order.serial, 1, [(False, error("bad row"))], 0), 12.0)

    assert scene.model.queue.waiting == 2, "one is over"
    assert scene.model.queue.all() == tasks[:2] and all(task.alone for task in tasks) and not tasks[0].done()


def test_no_answer_of_a_batch_counts_once_rows_are_known_not_to_be_independent(scene: Scene) -> None:
    answers, worker, _ = answers_of(scene)
    scene.model.max_batch = 8
    order, tasks = batch(scene, worker, 1, 1)

    answers.stop_batching(scene.model, "its rows depend on each other")
    answers.stop_batching(scene.model, "said again")
    answers.take(worker, (order.serial, 1, [(True, "a"), (True, "b")], 0), 12.0)

    assert scene.model.max_batch == 1 and "its rows depend" in scene.model.unbatched.summary
    assert scene.model.queue.all() == tasks and not any(task.done() for task in tasks)


def loading(scene: Scene, worker: WorkerState) -> int:
    """The worker is told to load the model; the order's serial."""
    worker.holds.clear()
    scene.task()
    assert [action.model for action in scene.pool.scheduler.plan(11.0) if isinstance(action, Load)] == [scene.model]
    return next(iter(worker.inflight))


def test_a_build_that_raises_is_told_to_all_who_wait_and_not_tried_again(scene: Scene) -> None:
    answers, worker, _ = answers_of(scene)
    serial = loading(scene, worker)
    (task,) = scene.model.queue.all()

    answers.not_built(worker, ("failed", serial, scene.model.number, *error("no such file"), False), 12.0)
    scene.pool.settle()

    assert isinstance(task.exception(0), ModelUnavailable) and isinstance(task.exception(0).__cause__, ValueError)  # type: ignore[union-attr]
    assert scene.model.broken is not None and worker.holds == {} and not worker.handle.killed


def test_a_build_without_memory_is_tried_again_in_another_worker_and_not_for_ever(scene: Scene) -> None:
    answers, worker, _ = answers_of(scene)
    for attempt in range(MAX_BUILDS):
        assert scene.model.broken is None
        worker.is_ready, scene.model.not_before = True, 0.0
        serial = loading(scene, worker)
        answers.not_built(worker, ("failed", serial, scene.model.number, *error("out of memory"), True), 12.0)
        if attempt < MAX_BUILDS - 1:
            assert worker.handle.killed == attempt + 1 and not worker.is_ready and scene.model.not_before > 12.0

    assert isinstance(scene.model.broken, ModelUnavailable)


@pytest.mark.parametrize(("nbytes", "is_broken"), [(10, False), (11, True)])
def test_a_model_that_turns_out_too_large_is_broken(nbytes: int, is_broken: bool) -> None:
    scene = Scene(cpu=10)
    answers, worker, _ = answers_of(scene)
    serial = loading(scene, worker)

    answers.loaded(worker, ("loaded", serial, scene.model.number, nbytes, 0.1, None), 12.0)

    assert (scene.model.broken is not None) == is_broken and scene.model.counted.loads == 1
    scene.pool.arena.close()


def test_results_are_found_one_by_one_also_where_they_lie_on_the_lane() -> None:
    assert separate([(True, 1), (False, 2)]) == [(True, 1), (False, 2)]
    assert separate((UNEVEN, [(True, 1)])) == [(True, 1)]
    assert separate((EVEN, "float32", (2,), 3, b"here")) == []
    place = ("o", 1, 2, 3, 4)
    assert separate((EVEN, "float32", (2,), 3, place)) == [(True, ("N", "float32", (3, 2), place))]
