"""What the pool keeps of models and workers: queues, deadlines, what batches cost, how often rows come, and seeds."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.pool.schedule.state import Arrivals, CostModel, Deadlines, Holding, Seat, TaskQueue, WorkerState, any_seed, derived, seed_of
from rankwise.pool.schedule.tasks import Task
from tests.pool.schedule.test_scheduler import state


def waiting(queue: TaskQueue, *tasks: dict[str, Any]) -> list[Task]:
    """Tasks of these facts, in the queue."""
    made = []
    for facts in tasks:
        task = Task(None, (None, 0, (), True), 0.0)
        for name, value in facts.items():
            setattr(task, name, value)
        queue.push(task)
        made.append(task)
    return made


def test_a_batch_takes_those_of_its_kind_and_leaves_the_others_in_their_order() -> None:
    queue = TaskQueue()
    kinds = [("a", 2), ("b", 1), ("a", 3), ("a", 1), ("b", 1), ("a", 1)]
    tasks = waiting(queue, *[{"key": key, "rows": rows} for key, rows in kinds])
    tasks[3].alone, tasks[1].is_over = True, True
    queue.forget(tasks[1])
    assert queue.rows_like(tasks[0]) == 7

    first = queue.pop()
    assert first is tasks[0]

    assert queue.pop_like(first, max_rows=4) == [tasks[0], tasks[5]], "three more rows would be too many, and one runs by itself"
    assert queue.rows_like(tasks[2]) == 4 and queue.waiting == 3
    assert [queue.pop() for _ in range(4)] == [tasks[2], tasks[3], tasks[4], None]
    assert queue.rows_like(tasks[0]) == queue.waiting == queue.requests == 0


@pytest.mark.parametrize("facts", [{"rows": 0}, {"rows": 1, "alone": True}])
def test_what_runs_by_itself_takes_nobody_along(facts: dict[str, Any]) -> None:
    queue = TaskQueue()
    waiting(queue, {"key": "a", **facts}, {"key": "a", "rows": 1})
    first = queue.pop()
    assert first is not None

    assert queue.pop_like(first, 8) == [first] and queue.waiting == 1


def test_what_runs_again_goes_before_those_of_its_priority_alone() -> None:
    queue = TaskQueue()
    low, high = waiting(queue, {"priority": 0}, {"priority": 5})
    again = Task(None, (None, 0, (), True), 0.0)
    queue.push(again, front=True)

    assert queue.all() == [high, again, low]


def test_who_waits_is_counted_once_however_often_he_is_forgotten() -> None:
    queue = TaskQueue()
    (task,) = waiting(queue, {"count": 8, "rows": 2, "key": "a", "is_extra": True})
    assert (queue.waiting, queue.requests, queue.extra) == (1, 8, 1)

    for _ in range(2):
        queue.forget(task)

    assert (queue.waiting, queue.requests, queue.extra, queue.rows_like(task)) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("seen", "fit"),
    [
        ([(1, 0.5), (64, 0.1)], (0.0, 0.3)),  # more rows took less time: the machine was busy
        ([(1, 0.0), (3, 1.0)], (0.25, 0.0)),  # as if a row of none took less than nothing
        ([(2, 0.0), (8, 0.0)], (0.0, 0.0)),
    ],
)
def test_what_a_batch_costs_is_never_less_than_nothing(seen: list[tuple[int, float]], fit: tuple[float, float]) -> None:
    cost = CostModel()
    assert cost.seconds(1) is None
    for rows, seconds in seen:
        cost.add(rows, seconds)

    assert cost.fit() == pytest.approx(fit, abs=0.02)


def test_of_one_size_half_the_cost_is_laid_to_each() -> None:
    cost = CostModel()
    for _ in range(5):
        cost.add(4, 0.8)

    assert cost.fit() == pytest.approx((0.1, 0.4))


def test_what_batches_cost_now_counts_more_than_what_they_cost_before() -> None:
    cost = CostModel()
    for seconds in (1.0, 0.001):
        for _ in range(100):
            cost.add(1, seconds)
            cost.add(9, 9 * seconds)

    assert (cost.seconds(1) or 1) < 0.01


def test_the_gap_between_rows_follows_how_they_come() -> None:
    arrivals = Arrivals()
    assert arrivals.gap_s(10.0) is None
    arrivals.rows = 4
    assert arrivals.gap_s(10.0) is None, "since when, nobody knows"
    arrivals.rows = 4
    assert arrivals.gap_s(10.4) == pytest.approx(0.1)
    assert arrivals.gap_s(50.0) == pytest.approx(0.1), "no row came, so nothing is learned"
    arrivals.rows = 1
    assert arrivals.gap_s(1050.0) == pytest.approx(0.1 * 0.9 + 1.0 * 0.1), "a night without requests is not the usual gap"


def test_a_worker_sees_its_own_gpu_and_its_share_of_the_cores() -> None:
    assert Seat("cuda:1", 4).env["CUDA_VISIBLE_DEVICES"] == "1" and Seat("cpu", 4).env["CUDA_VISIBLE_DEVICES"] == ""
    assert {Seat("cpu", 3).env[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")} == {"3"}


def test_a_model_stays_while_it_is_loaded_runs_or_was_loaded_for_somebody() -> None:
    model, worker = state(1), WorkerState(1, "cpu")
    holding = Holding(model, worker, 40)
    assert holding.is_needed, "it is being loaded"
    holding.is_loading = False
    assert not holding.is_needed
    (task,) = waiting(model.queue, {})
    assert holding.is_needed, "somebody waits for it"
    holding.is_fresh = False
    assert not holding.is_needed, "it has run since"
    model.queue.forget(task)
    holding.orders = 1
    assert holding.is_needed
    worker.holds = {1: holding, 2: Holding(model, worker, 2)}
    assert worker.held_bytes == 42


def test_seeds_are_the_same_for_the_same_words_alone() -> None:
    assert derived(7, "model", 1) == derived(7, "model", 1)
    assert (
        len({derived(7, "model", 1), derived(8, "model", 1), derived(7, "model", "1"), derived(7, "worker", 1), derived(7, "model")}) == 5
    )
    assert seed_of(None, 3) is None and seed_of(7, 3) == derived(7, 3) != seed_of(7, 4)
    assert all(0 <= seed < 1 << 63 for seed in (any_seed(), derived(7, "model"))) and any_seed() != any_seed()


def test_results_and_times_are_remembered_as_they_were_of_late() -> None:
    model = state(1)
    model.ran(2, 1.0)
    model.ran(0, 2.0)
    assert model.order_s == pytest.approx(1.2) and model.cost.seconds(2) == pytest.approx(1.0), "an order without rows says nothing of rows"
    for nbytes in (100.0, 10.0, 10.0):
        model.gave(nbytes)
    assert model.result_bytes == pytest.approx(81.0)


@given(st.floats(1e-5, 1e-2), st.floats(1e-5, 1e-1))
def test_the_cost_of_a_batch_is_learned(a: float, b: float) -> None:
    cost = CostModel()
    for rows in (1, 8, 3, 32, 16, 2, 24):
        cost.add(rows, a * rows + b)
    fit = cost.fit()
    assert fit is not None and fit == pytest.approx((a, b), rel=1e-3, abs=1e-6)


def test_queues_go_by_priority_then_age_and_forget_the_cancelled() -> None:
    queue, model = TaskQueue(), state(1)
    tasks = [Task(model, (("=", 1), 1, (), True), 0.0) for _ in range(4)]
    tasks[2].priority = 3
    for task in tasks:
        queue.push(task)
    tasks[0].is_over = True
    queue.forget(tasks[0])

    assert queue.waiting == 3
    assert [queue.pop() for _ in range(4)] == [tasks[2], tasks[1], tasks[3], None]


def test_deadlines_keep_nothing_that_is_over() -> None:
    deadlines, kept = Deadlines(), []
    for i in range(1000):
        task = Task(None, (None, 0, (), True), 0.0)
        task.is_over = i % 100 != 7
        deadlines.add(1000.0 - i, task)
        kept.append(task)
    gone = weakref.ref(kept.pop(7))
    del task

    assert gone() is None and len(deadlines._heap) < 200
    assert deadlines.next() == 1000.0 - 907
    assert [task for task in deadlines.passed(500.0) if not task.is_over] == [kept[i - 1] for i in (907, 807, 707, 607, 507)]


def test_a_queue_keeps_no_place_for_priorities_that_nobody_has() -> None:
    queue = TaskQueue()
    for priority in range(1000):
        task = Task(None, (None, 0, (), True), 0.0)
        task.priority = priority
        queue.push(task)
        assert queue.pop() is task
    assert len(queue._lanes) < 3
