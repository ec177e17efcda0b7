"""Quick requests of a stream that travel together: each fares as it would by itself."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.families import mostly_live

torch = pytest.importorskip("torch")

from rankwise.pool import Model, Pool, PoolClosed, Quarantined, TaskHung  # noqa: E402
from rankwise.pool.api.grouped_streams import GroupedStream  # noqa: E402
from rankwise.pool.errors import not_batched  # noqa: E402
from rankwise.pool.memory.shared_memory import Segment  # noqa: E402
from rankwise.pool.schedule.state import ModelState, TaskQueue  # noqa: E402
from rankwise.pool.schedule.tasks import Chunk  # noqa: E402
from rankwise.pool.transport.connection import SIZE, StatusPage  # noqa: E402
from tests.pool.models import EXIT, HANG, KILL, RAISE, FailsToBeRead  # noqa: E402

HERE = "tests.pool.models"
LANE = 5000  # numbers of float32 that do not fit a message


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    names = ("moody", "echo", "sleeper", "in_place", "various")
    models = {name: Model(f"{HERE}:{name}") for name in names} | {"hasty": Model(f"{HERE}:moody", limit_s=0.5)}
    with Pool(models, workers=2) as pool:
        yield pool


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests each chunk had."""
    counts: list[int] = []
    send = GroupedStream._send_chunk
    monkeypatch.setattr(GroupedStream, "_send_chunk", lambda self, chunk: (counts.append(chunk.count), send(self, chunk))[1])
    return counts


def quick(pool: Pool, model: str) -> ModelState:
    """As if it had been seen to be quick: so its requests travel in chunks, whatever else the machine does."""
    state = pool._state(model)
    state.order_s, state.result_bytes = 1e-5, 8.0
    return state


def mapped(pool: Pool, model: str, inputs: Any, **options: Any) -> Iterator[Any]:
    quick(pool, model)
    return pool.map(model, inputs, **options)


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    "make", [lambda i: torch.full((2, 3), float(i)), lambda i: np.full((2, 3), i, np.int64), lambda i: torch.tensor(i)]
)
def test_arrays_come_back_in_order_each_in_memory_of_its_own(pool: Pool, sent: list[int], make: Callable[[int], Any]) -> None:
    results = list(mapped(pool, "moody", [make(i) for i in range(300)]))

    assert max(sent) > 8
    for i, y in enumerate(results):
        expected = make(2 * i)
        assert type(y) is type(expected) and y.dtype == expected.dtype and y.shape == expected.shape and (y == expected).all()
        assert (
            y.untyped_storage().nbytes() if isinstance(y, torch.Tensor) else memoryview(y if y.base is None else y.base).nbytes
        ) == y.nbytes
        y += 1000  # nobody else's


def test_a_result_may_take_part_in_a_gradient(pool: Pool, sent: list[int]) -> None:
    weight = torch.ones(3, requires_grad=True)
    for y in mapped(pool, "moody", [torch.ones(3)] * 40):
        y += weight
        y.sum().backward()

    assert sent and weight.grad is not None and weight.grad.eq(40).all()


def test_results_of_all_kinds_are_what_they_are_alone(pool: Pool, sent: list[int]) -> None:
    inputs = [torch.tensor([float(i)]) for i in range(200)]
    results = list(mapped(pool, "various", inputs))

    assert max(sent) > 8
    for x, y in zip(inputs, results):
        alone = pool.submit("various", x).result(60)
        assert type(y) is type(alone) and repr(y) == repr(alone)


def test_inputs_of_all_kinds_arrive(pool: Pool, sent: list[int]) -> None:
    kinds: list[Callable[[int], Any]] = [
        lambda i: i, lambda i: f"text {i}", lambda i: [i, {"a": float(i)}], lambda i: None,
        lambda i: torch.tensor([i], dtype=torch.bfloat16), lambda i: torch.full((LANE,), float(i)),
        lambda i: np.zeros((0, 4)), lambda i: {i},
    ]  # fmt: skip
    inputs = [kinds[i % len(kinds)](i) for i in range(400)]

    for x, y in zip(inputs, mapped(pool, "echo", inputs), strict=True):
        assert type(y) is type(x) and repr(y) == repr(x)
    assert max(sent) > 4


def test_an_error_has_its_place_and_those_before_it_come_first(pool: Pool, sent: list[int]) -> None:
    found = []
    with pytest.raises(ValueError, match="this row is bad"):
        for y in mapped(pool, "moody", [torch.tensor([RAISE if i == 77 else float(i)]) for i in range(300)]):
            found.append(y.item())

    assert max(sent) > 8 and found == [2.0 * i for i in range(77)]


def test_an_input_that_cannot_be_read_fails_alone(pool: Pool, sent: list[int]) -> None:
    inputs: list[Any] = [FailsToBeRead() if i == 3 else {i} for i in range(40)]
    results = mapped(pool, "echo", inputs)

    assert [next(results) for _ in range(3)] == [{0}, {1}, {2}] and max(sent) > 3
    with pytest.raises(LookupError, match="not here"):
        next(results)


@pytest.mark.parametrize("wish", [EXIT, KILL])
@pytest.mark.parametrize("numbers", [1, LANE])
def test_of_a_chunk_the_one_that_ends_workers_is_blamed(pool: Pool, sent: list[int], wish: float, numbers: int) -> None:
    before = pool.stats()["models"]["moody"]["quarantined"]
    found = []
    with pytest.raises(Quarantined):
        for y in mapped(pool, "moody", [torch.full((numbers,), wish if i == 50 else float(i)) for i in range(200)]):
            found.append(y[0].item())

    assert max(sent) > 4 and found == [2.0 * i for i in range(50)]
    assert pool.stats()["models"]["moody"]["quarantined"] == before + 1


def test_the_limit_is_for_each_request(pool: Pool, sent: list[int]) -> None:
    found = []
    with pytest.raises(TaskHung):
        for y in mapped(pool, "hasty", [torch.tensor([HANG if i == 50 else float(i)]) for i in range(200)]):
            found.append(y.item())

    assert max(sent) > 4 and found == [2.0 * i for i in range(50)]


def test_a_model_that_is_not_batched_any_more_answers_what_was_taken_from_a_chunk(sent: list[int]) -> None:
    with Pool({"moody": Model(f"{HERE}:moody")}, workers=1) as pool:
        quick(pool, "moody").unbatched = not_batched("moody", "of a test")
        with pytest.raises(Quarantined):
            for i, y in enumerate(pool.map("moody", [torch.tensor([EXIT if i == 20 else float(i)]) for i in range(100)])):
                assert y.item() == 2 * i

    assert max(sent) > 4


def test_workers_that_are_killed_in_the_middle_cost_nothing(sent: list[int]) -> None:
    with Pool({"sleeper": Model(f"{HERE}:sleeper", replicas=2)}, workers=2) as pool:
        quick(pool, "sleeper")
        is_over, kills = threading.Event(), []

        def kill() -> None:
            while not is_over.wait(0.3):
                pids = [worker["pid"] for worker in pool.stats()["workers"] if worker["running"]]
                if pids and len(kills) < 5:
                    kills.append(pids[0])
                    os.kill(pids[0], signal.SIGKILL)

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            tags = [tag for _, _, tag in pool.map("sleeper", [(0.002, i) for i in range(2000)])]
        finally:
            is_over.set()
            thread.join()

    assert kills and max(sent) > 8 and tags == list(range(2000))


@pytest.mark.live
def test_those_behind_a_slow_one_go_to_somebody_who_has_time(sent: list[int]) -> None:
    with Pool({"sleeper": Model(f"{HERE}:sleeper", replicas=2)}, workers=2) as pool:
        list(pool.map("sleeper", [(0.01, None)] * 10))  # both workers have it
        quick(pool, "sleeper")
        results = list(pool.map("sleeper", [(3.0 if i == 1 else 0.0, i) for i in range(100)]))

    assert max(sent) > 4 and [tag for _, _, tag in results] == list(range(100))
    assert all(ended < results[1][1] for _, ended, tag in results if tag != 1)


def test_a_stream_that_is_left_half_way_leaves_nothing_to_do(sent: list[int]) -> None:
    with Pool({"sleeper": Model(f"{HERE}:sleeper", replicas=2)}, workers=2) as pool:
        list(pool.map("sleeper", [(0.01, None)] * 10))
        done = pool.stats()["models"]["sleeper"]["completed"]
        quick(pool, "sleeper")
        results = pool.map("sleeper", [(0.0, 0), *[(0.2, i) for i in range(1, 2000)]])
        assert next(results)[2] == 0
        results.close()  # type: ignore[attr-defined]
        until(lambda: not (pool.stats()["models"]["sleeper"]["queued"] or pool.stats()["models"]["sleeper"]["running"]))

        assert max(sent) > 4 and pool.stats()["models"]["sleeper"]["completed"] - done < 100
        assert pool.stats()["lanes"]["inputs_used_bytes"] == 0


@pytest.mark.live
def test_closing_waits_for_the_running_request_not_for_its_chunk(sent: list[int]) -> None:
    pool = Pool({"sleeper": Model(f"{HERE}:sleeper")}, workers=1)
    try:
        pool.submit("sleeper", 0.0).result(60)
        quick(pool, "sleeper")
        results = pool.map("sleeper", [(0.0, 0), *[(0.2, i) for i in range(1, 200)]])
        assert next(results)[2] == 0
        pool.close(cancel=True)

        assert max(sent) > 4 and pool.stats()["models"]["sleeper"]["completed"] < 50
        with pytest.raises(PoolClosed):
            list(results)
    finally:
        pool.close(cancel=True)


def test_memory_that_is_given_several_times_is_as_it_was_each_time(pool: Pool, sent: list[int]) -> None:
    x = pool.empty((LANE,), torch.float32)
    x.fill_(1.0)

    assert all(y.eq(2.0).all() for y in mapped(pool, "in_place", [x] * 40))
    assert max(sent) > 1 and x.eq(1.0).all()


@pytest.mark.parametrize("numbers", mostly_live([4, LANE]))
def test_what_a_model_keeps_of_a_chunk_stays_as_it_was(sent: list[int], numbers: int) -> None:
    with Pool({"keeper": Model(f"{HERE}:keeper")}, workers=1) as pool:
        quick(pool, "keeper")
        assert [y.item() for y in pool.map("keeper", [torch.full((numbers,), 7.0 + i) for i in range(100)])] == [7.0] * 100

    assert max(sent) > 1


def test_no_more_than_the_window_is_under_way(pool: Pool, sent: list[int]) -> None:
    taken = 0

    def source() -> Iterator[Any]:
        nonlocal taken
        for i in range(200):
            taken += 1
            yield torch.tensor([float(i)])

    for i, _ in enumerate(mapped(pool, "moody", source(), window=20)):
        assert taken - i <= 20
    assert max(sent) == 5  # a quarter for each of two workers, and as much again


def test_results_too_many_for_a_message_come_all_the_same(pool: Pool, sent: list[int]) -> None:
    results = list(mapped(pool, "moody", [torch.full((1500,), float(i)) for i in range(100)]))
    assert max(sent) > 4 and all(y.eq(2.0 * i).all() for i, y in enumerate(results))


@pytest.mark.parametrize(("numbers", "together"), [(1 << 20, False), (LANE, True)])
def test_only_large_results_are_not_waited_for_together(pool: Pool, sent: list[int], numbers: int, together: bool) -> None:
    state = quick(pool, "moody")
    state.result_bytes = None
    requests = [torch.zeros(numbers)] * 60
    list(pool.map("moody", requests))  # learns what results cost

    sent.clear()
    state.order_s = 1e-5
    assert len(list(pool.map("moody", requests))) == 60
    assert (max(sent, default=1) > 2) is together


@pytest.mark.live
def test_a_model_that_cannot_be_built_says_so_for_each(sent: list[int]) -> None:
    with Pool({"broken": Model(f"{HERE}:broken")}, workers=1) as pool:
        quick(pool, "broken")
        with pytest.raises(Exception, match="broken"):
            list(pool.map("broken", [1] * 100))


def test_requests_are_counted_not_chunks(pool: Pool, sent: list[int]) -> None:
    before = pool.stats()["models"]["echo"]["completed"]
    list(mapped(pool, "echo", range(300)))
    assert sent and pool.stats()["models"]["echo"]["completed"] == before + 300


def test_two_answers_to_one_request_count_once() -> None:
    chunk = Chunk(None, (1, None, None, None, True), None)  # type: ignore[arg-type]
    for i in range(4):
        chunk.add(("=", i), 10, ())
    taken = chunk.tasks_from(2)

    assert [task.node for task in taken] == [("=", 2), ("=", 3)] and chunk.tasks_from(2) == []
    assert not chunk.take(3, ["again"], {})
    assert not chunk.take(0, ["a", "b"], {1: ValueError("second")})
    assert chunk.take(2, ["c", "thrown away"], {1: ValueError("thrown away")})
    assert [chunk.value(i) for i in (0, 2, 3)] == ["a", "c", "again"]
    with pytest.raises(ValueError, match="second"):
        chunk.value(1)


def test_requests_taken_from_a_chunk_take_no_room_in_the_queue() -> None:
    queue, chunk = TaskQueue(), Chunk(None, (1, None, None, None, True), None)  # type: ignore[arg-type]
    for i in range(4):
        chunk.add(("=", i), 10, ())
    tasks = chunk.tasks_from(0)
    for task in tasks:
        queue.push(task)

    assert queue.waiting - queue.extra == 0 and queue.requests == 4
    queue.forget(tasks[0])
    assert queue.waiting == queue.extra == queue.requests == 3


def test_a_slot_given_twice_is_taken_out_once() -> None:
    chunk, a, b = Chunk(None, (1, None, None, None, True), None), object(), object()  # type: ignore[arg-type]
    for i, slots in enumerate([(a, b), (a,)]):
        chunk.add(("=", i), 10, slots)
    taken = chunk.tasks_from(1)

    assert [task.slots for task in taken] == [(a,)] and sorted(map(id, chunk.slots)) == sorted(map(id, [a, b]))


def test_what_one_request_did_is_not_the_next_ones_doing() -> None:
    page = StatusPage(Segment.create(SIZE, "rankwise-test"))
    page.run(5, 1)
    begins = page.chunk(5)
    assert begins(0)
    page.note_own_signal()
    assert page.is_own_doing
    assert begins(1)
    assert not page.is_own_doing and page.item == 1


def test_more_than_one_chunk_can_be_taken_back_from_a_worker() -> None:
    page = StatusPage(Segment.create(SIZE, "rankwise-test"))
    page.cut(5)
    page.cut(6)
    taken_back = []
    for serial in (4, 5, 6, 7):
        page.run(serial, 1)
        taken_back.append(not page.chunk(serial)(0))

    assert taken_back == [False, True, True, False]
