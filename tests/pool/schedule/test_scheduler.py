"""The pure part: memory, batches, budgets, blame, queues and turns, without a process and with a clock of the test's own."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.pool.backend import Machine, plan_workers
from rankwise.pool.errors import Death, is_quarantined
from rankwise.pool.memory.requests import cut, cut_value, join_nodes, rows_and_key
from rankwise.pool.memory.shared_memory import PAGE, FreeRanges, Segment, rounded
from rankwise.pool.schedule.scheduler import Scheduler, evictions, wait_until
from rankwise.pool.schedule.state import Drop, Holding, Load, ModelState, Run, Seat, WorkerState
from rankwise.pool.schedule.tasks import Task
from rankwise.pool.stats import EDGES, Histogram
from rankwise.pool.transport.connection import SIZE, StatusPage


@given(st.lists(st.integers(1, 40), max_size=60), st.randoms())
def test_extents_never_overlap_and_are_whole_again_in_the_end(sizes: list[int], rng: Any) -> None:
    extents, taken = FreeRanges(64 * PAGE), []
    for pages in sizes:
        start = extents.take(pages * PAGE)
        if start is not None:
            assert all(start + pages * PAGE <= other or other + size <= start for other, size in taken)
            taken.append((start, pages * PAGE))
        if taken and rng.random() < 0.4:
            extents.give(*taken.pop(rng.randrange(len(taken))))
    for start, size in taken:
        extents.give(start, size)
    assert extents.is_empty and extents.take(64 * PAGE) == 0


def test_giving_back_twice_is_noticed() -> None:
    extents = FreeRanges(4 * PAGE)
    start = extents.take(PAGE)
    assert start == 0
    extents.give(0, PAGE)
    with pytest.raises(ValueError, match="free already"):
        extents.give(0, PAGE)


def test_sizes_are_whole_pages() -> None:
    assert [rounded(n) for n in (0, 1, PAGE, PAGE + 1)] == [PAGE, PAGE, PAGE, 2 * PAGE]


def test_waiting_for_more_rows_only_where_it_pays() -> None:
    now = 10.0

    def until(rows: int, gap_s: float | None, delay_s: float = 0.002, deadline: float | None = None) -> float:
        """Of a batch that costs 1 ms for each row and 10 ms besides."""
        model = state(1, max_batch=8, max_delay_s=delay_s)
        for known in (1, 2, 8) if gap_s is not None else ():
            model.cost.add(known, 0.001 * known + 0.010)
        model.arrivals._gap_s = gap_s
        return wait_until(rows, model, now, deadline, now)

    assert until(1, 0.001) == pytest.approx(now + 0.002)  # rows come quickly, a batch is dear
    assert until(1, 0.050) == now  # the next row is far away
    assert until(8, 0.001) == now  # full
    assert until(1, None) == now  # nothing known yet
    assert until(1, 0.001, 0.1, deadline=now + 0.019) == pytest.approx(now + 0.001)  # never past a deadline


def test_the_least_recently_used_leaves_but_never_one_in_use() -> None:
    old, new, busy = (
        Holding(state(i), WorkerState(1, "cpu"), 40, is_loading=False, last_used=last_used, orders=orders)
        for i, last_used, orders in ((1, 1.0, 0), (2, 5.0, 0), (3, 0.0, 1))
    )

    assert evictions([old, new], 10, None) == []
    assert evictions([old, new], 20, 100) == []
    assert evictions([new, old], 30, 100) == [old]
    assert evictions([new, old, busy], 60, 100) == [old, new]
    assert evictions([old, busy], 70, 100) is None


@pytest.mark.parametrize(
    ("proven_deaths", "hits", "death", "expected"),
    [
        (1, 1, Death(3), False),
        (2, 2, Death(3), True),
        (0, 2, Death(-signal.SIGSEGV), False),
        (0, 3, Death(-signal.SIGSEGV), True),
        (0, 5, Death(-signal.SIGKILL), False),
        (0, 6, Death(-signal.SIGKILL), True),
        (2, 2, Death(-signal.SIGKILL, out_of_memory=True), True),
    ],
)
def test_an_input_is_set_aside_when_it_is_to_blame(proven_deaths: int, hits: int, death: Death, expected: bool) -> None:
    assert is_quarantined(proven_deaths, hits, death) is expected


def test_only_what_nobody_else_can_have_done_is_proof() -> None:
    assert Death(0).is_proven and Death(7).is_proven and Death(-9, own_doing=True).is_proven
    assert not Death(-9).is_proven and not Death(-11).is_proven and not Death(1, stopped=True).is_proven


def state(number: int, **changes: Any) -> ModelState:
    facts = {"device": "cpu", "replicas": None, "max_batch": 1, "max_delay_s": 0.0, "nbytes": 10, "limit_s": None, **changes}
    return ModelState(number, f"m{number}", **facts)


def scheduler(models: list[ModelState], workers: int = 2, budget: int | None = None) -> Scheduler:
    made = Scheduler(models, {} if budget is None else {"cpu": budget})
    made.workers = {i: WorkerState(i, "cpu", is_ready=True) for i in range(1, workers + 1)}
    return made


def give(made: Scheduler, model: ModelState, count: int, **facts: Any) -> list[Task]:
    tasks = []
    for _ in range(count):
        task = Task(model, (("=", 1), 1, (), True), 0.0)
        for name, value in facts.items():
            setattr(task, name, value)
        made.add(task)
        tasks.append(task)
    return tasks


def load_all(made: Scheduler, now: float = 0.0) -> None:
    for action in made.plan(now):
        if isinstance(action, Load):
            order = next(order for order in action.worker.inflight.values() if order.is_load)
            del action.worker.inflight[order.serial]
            made.take_back(action.worker, order, now)
            made.loaded(action.worker, action.model, 10, 0.01, now)


def test_models_are_loaded_where_there_is_room_and_run_where_they_are() -> None:
    a, b = state(1), state(2)
    made = scheduler([a, b])
    give(made, a, 1)
    give(made, b, 1)
    load_all(made)

    assert sorted(len(worker.holds) for worker in made.workers.values()) == [1, 1]
    runs = [action for action in made.plan(1.0) if isinstance(action, Run)]
    assert {run.orders[0].model.name for run in runs} == {"m1", "m2"}
    assert all(run.orders[0].model.number in run.worker.holds for run in runs)


@pytest.mark.parametrize(("gap_s", "starts"), [(0.0001, False), (0.1, True)])
def test_a_lone_row_starts_at_once_unless_more_will_come(gap_s: float, starts: bool) -> None:
    model = state(0, max_batch=32, max_delay_s=0.002)
    made = scheduler([model])
    model.cost.add(1, 0.010)
    for number in range(20):
        now = 1.0 + number * gap_s
        is_alone = made.is_best_alone(model, now)
        if not is_alone:
            give(made, model, 1, rows=1)  # counts it
    assert is_alone is starts
    assert model.arrivals.gap_s(now) == pytest.approx(gap_s, rel=0.05)


def test_a_flood_shares_the_worker_with_others() -> None:
    a, b = state(1, order_s=0.001), state(2, order_s=0.001)
    made = scheduler([a, b], workers=1)
    flood = give(made, a, 1000)
    load_all(made)
    few, worker = give(made, b, 3), made.workers[1]

    for now in range(2, 30):
        load_all(made, float(now))
        for order in list(worker.inflight.values())[:1]:  # one is done, so that it never has nothing to do
            del worker.inflight[order.serial]
            made.take_back(worker, order, float(now))

    assert all(task.worker is not None for task in few)
    assert sum(task.worker is not None for task in flood) < 100
    assert sum(task.worker is not None for task in flood) > 10


@pytest.mark.parametrize(
    ("is_lazy", "waiting", "order_s", "expected"),
    [
        (True, 10, 0.2, [2, 2]),  # of a stream, the next is there when one is done, however long it takes
        (True, 3, 0.2, [1, 1]),  # but near the end whoever is done first takes the last
        (False, 10, 0.2, [1, 1]),  # who waits for just this one shall not wait behind another
        (True, 100, 0.01, [4, 4]),
        (True, 8, 0.01, [3, 3]),  # three quarters of each one's part; whoever is quicker takes the rest
    ],
)
def test_what_waits_inside_a_worker(is_lazy: bool, waiting: int, order_s: float, expected: list[int]) -> None:
    a = state(1, replicas=2, order_s=order_s)
    made = scheduler([a])
    give(made, a, waiting, is_lazy=is_lazy)
    load_all(made)
    made.plan(1.0)

    assert [len(worker.inflight) for worker in made.workers.values()] == expected


def test_a_stream_comes_in_portions() -> None:
    """To be given one for each that is done would mean an answer for each."""
    a = state(1, order_s=0.002)
    made = scheduler([a], workers=1)
    worker = made.workers[1]
    give(made, a, 1000, is_lazy=True)
    load_all(made)

    portions = []
    for now in range(100):
        portions.append(sum(len(action.orders) for action in made.plan(float(now)) if isinstance(action, Run)))
        order = next(iter(worker.inflight.values()))
        del worker.inflight[order.serial]
        made.take_back(worker, order, float(now))

    assert portions[0] == 20  # 40 ms of it
    assert {portion for portion in portions[1:] if portion} == {11}  # as soon as there is less than half


def test_a_stream_does_not_keep_others_waiting_until_its_end() -> None:
    stream, other = state(1, order_s=0.06), state(2, order_s=0.001)
    made = scheduler([stream, other], workers=1)
    worker = made.workers[1]
    for model in (stream, other):
        give(made, model, 1)
        load_all(made)
        made.plan(1.0)
        for order in list(worker.inflight.values()):
            del worker.inflight[order.serial]
            made.take_back(worker, order, 1.0)
    give(made, stream, 100, is_lazy=True)
    made.plan(2.0)
    urgent = give(made, other, 1)[0]

    done = 0
    while urgent.worker is None and done < 50:
        order = next(iter(worker.inflight.values()))
        del worker.inflight[order.serial]
        made.take_back(worker, order, 3.0)
        made.plan(3.0)
        done += 1

    assert done <= 3  # what was inside already, and one whose turn it still was


def test_a_tight_budget_evicts_and_a_busy_model_stays() -> None:
    a, b = state(1, nbytes=60), state(2, nbytes=60)
    made = scheduler([a, b], workers=1, budget=100)
    give(made, a, 1)
    load_all(made)
    made.workers[1].holds[1].nbytes = 60
    made.plan(1.0)  # a runs
    give(made, b, 1)

    assert not [action for action in made.plan(2.0) if isinstance(action, (Load, Drop))]
    worker = made.workers[1]
    order = next(iter(worker.inflight.values()))
    del worker.inflight[order.serial]
    made.take_back(worker, order, 2.0)
    assert [type(action) for action in made.plan(3.0)] == [Drop, Load]


def test_what_was_loaded_for_somebody_serves_him_before_it_leaves_for_another() -> None:
    """Two models that do not fit beside each other, two workers: the idle one must not throw out what the other has just loaded."""
    a, b = state(1, nbytes=60), state(2, nbytes=60)
    made = scheduler([a, b], workers=2, budget=100)
    give(made, a, 1)
    load_all(made)
    holder = next(worker for worker in made.workers.values() if 1 in worker.holds)
    holder.holds[1].nbytes = 60
    give(made, b, 1)

    actions = made.plan(1.0)

    assert not [action for action in actions if isinstance(action, (Load, Drop))]
    assert [order.model for order in holder.inflight.values()] == [a]


def test_who_waits_for_room_does_not_keep_an_idle_worker_from_the_others() -> None:
    a, b, c = state(1, nbytes=60), state(2, nbytes=60), state(3, nbytes=0)
    made = scheduler([a, b, c], workers=2, budget=100)
    give(made, a, 1)
    load_all(made)
    next(worker for worker in made.workers.values() if 1 in worker.holds).holds[1].nbytes = 60
    made.plan(1.0)  # a runs, and takes the room that b needs
    give(made, b, 1)
    give(made, c, 1)

    assert [action.model for action in made.plan(2.0) if isinstance(action, Load)] == [c]


def test_a_second_replica_is_worth_it_only_for_a_backlog() -> None:
    a = state(1, order_s=0.01)
    made = scheduler([a])
    give(made, a, 1)
    load_all(made)
    a.load_s = 0.1
    give(made, a, 3)
    assert not [action for action in made.plan(1.0) if isinstance(action, Load)]
    give(made, a, 30)
    assert [action for action in made.plan(1.0) if isinstance(action, Load)]


def test_batches_hold_rows_of_one_kind_and_no_more_than_they_may() -> None:
    a = state(1, max_batch=8, order_s=0.001)
    made = scheduler([a], workers=1)
    give(made, a, 1, rows=1, key="k")
    load_all(made)
    for rows in (1, 2, 8):
        a.cost.add(rows, 0.0001)
    give(made, a, 3, rows=3, key="k")
    give(made, a, 2, rows=1, key="other")

    (run,) = [action for action in made.plan(1.0) if isinstance(action, Run)]
    assert [sum(task.rows for task in order.tasks) for order in run.orders] == [7, 3, 2]
    assert all(len({task.key for task in order.tasks}) == 1 for order in run.orders)


@given(st.integers(1, 9), st.integers(1, 9))
def test_rows_are_cut_and_joined_without_loss(first: int, second: int) -> None:
    def node(rows: int, start: int) -> tuple[Any, ...]:
        data = bytes(range(start, start + 2 * rows))
        return ("(", [("T", "uint8", (rows, 2), data), ("=", "plain")])

    a, b = node(first, 0), node(second, 2 * first)
    joined = join_nodes([a, b])
    assert rows_and_key(joined)[0] == first + second and rows_and_key(a)[1] == rows_and_key(b)[1]
    assert cut(joined, 0, first) == a and cut(joined, first, first + second) == b
    assert cut_value({"y": range(10)}, 2, 4) == {"y": range(10)}  # what has no rows stays whole


def test_a_plan_shares_the_cores_and_says_why() -> None:
    here = Machine(8, 1 << 34, ("0", "1"), "8 cores")
    cpu, gpu = plan_workers(here, "auto", False, None, False), plan_workers(here, "auto", True, None, False)

    assert [seat.threads for seat in cpu.seats] == [1] * 8 and {seat.device for seat in cpu.seats} == {"cpu"}
    assert [seat.device for seat in gpu.seats] == ["cuda:0", "cuda:1"] * 2 and "2 GPUs" in gpu.why
    assert plan_workers(here, 2, False, None, True).seats[1].threads == 4
    assert Seat("cuda:1", 4).env["CUDA_VISIBLE_DEVICES"] == "1" and Seat("cpu", 4).env["OMP_NUM_THREADS"] == "4"


def test_quantiles_of_a_histogram() -> None:
    histogram = Histogram()
    assert histogram.quantile(0.5) is None
    for i in range(100):
        histogram.add(0.0009 if i < 90 else 0.21)
    assert histogram.quantile(0.5) == pytest.approx(0.0009, rel=0.1) and histogram.quantile(0.99) == pytest.approx(0.21, rel=0.1)
    assert histogram.quantile(1) <= 0.21

    edges = dict(zip((*EDGES, "all"), histogram.up_to_edges()))  # as Prometheus is shown them
    assert (edges[0.0005], edges[0.001], edges[0.2], edges[0.5], edges["all"]) == (0, 90, 90, 100, 100)


def test_a_model_runs_where_it_was_asked_to_and_takes_memory_there() -> None:
    on_any, on_second, on_cpu = state(1), state(2), state(3)
    on_any.device, on_second.device, on_cpu.device = "cuda", "cuda:1", "cpu"

    assert [on_any.may_run_on(device) for device in ("cpu", "cuda:0", "cuda:1")] == [False, True, True]
    assert [on_second.may_run_on(device) for device in ("cpu", "cuda:0", "cuda:1")] == [False, False, True]
    assert all(on_cpu.may_run_on(device) for device in ("cpu", "cuda:0"))
    assert on_cpu.place_on("cuda:0") == "cpu" and on_any.place_on("cuda:1") == "cuda:1"

    made = Scheduler([on_second, on_cpu], {"cuda:0": 10, "cuda:1": 10})
    for number in (0, 1):
        made.workers[number] = WorkerState(number, f"cuda:{number}", is_ready=True)
    give(made, on_second, 1)
    loads = [action for action in made.plan(0.0) if isinstance(action, Load)]
    assert [(load.worker.device, load.model) for load in loads] == [("cuda:1", on_second)]


def test_where_workers_die_of_signals_anyway_an_input_is_not_blamed_so_soon() -> None:
    crash = Death(-signal.SIGSEGV)

    assert is_quarantined(0, 3, crash) and is_quarantined(0, 3, crash, others=1)
    assert not is_quarantined(0, 5, crash, others=2) and is_quarantined(0, 6, crash, others=2)
    assert is_quarantined(2, 2, Death(1), others=9)  # what it certainly did itself counts as ever


def test_a_look_between_two_words_of_a_worker_is_no_task_that_runs_for_ever() -> None:
    page = StatusPage(Segment.create(SIZE, "test-status"))
    page.run(7, 1234)
    assert page.running == (7, 1234)
    page.run(8, 0)  # what is seen of `run(8, now)` before the time is there
    assert page.running == (0, 0)
    page.segment.close()
