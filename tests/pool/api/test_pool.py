"""The pool as people use it: map, asyncio, threads, batching, ensembles, splits, metrics, the live table, in-process."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from prometheus_client import CollectorRegistry, generate_latest  # noqa: E402

from rankwise.errors import RankwiseError, UsageError  # noqa: E402
from rankwise.pool import Model, Pool  # noqa: E402
from tests.pool.models import EXIT, RAISE  # noqa: E402

HERE = "tests.pool.models"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    models = {
        "echo": Model(f"{HERE}:echo"),
        "double": Model(f"{HERE}:moody"),
        "rows": Model(f"{HERE}:rows", args=(8,), max_batch=8, max_delay_ms=20, replicas=1),
        "hungry": Model(f"{HERE}:hungry", max_batch=16),
        "sum": Model(f"{HERE}:plain_sum", max_batch=8),
        "facts": Model(f"{HERE}:facts"),
        "sleeper": Model(f"{HERE}:sleeper"),
        "linear": Model(f"{HERE}:linear", warmup=torch.zeros(1, 10)),
    }
    with Pool(models, workers=2) as pool:
        yield pool


def test_map_gives_results_in_order_of_an_endless_source(pool: Pool) -> None:
    def numbers() -> Iterator[Any]:
        i = 0
        while True:
            yield torch.tensor([float(i)])
            i += 1

    results = pool.map("double", numbers(), window=50)

    assert [next(results).item() for _ in range(300)] == [2.0 * i for i in range(300)]
    results.close()


def test_map_raises_where_the_failing_input_stands(pool: Pool) -> None:
    results = pool.map("double", [torch.tensor([1.0]), torch.tensor([RAISE]), torch.tensor([2.0])])

    assert next(results).item() == 2.0
    with pytest.raises(ValueError, match="bad"):
        next(results)


def test_a_stream_over_several_models_keeps_its_order_whatever_is_bunched(pool: Pool) -> None:
    requests: list[tuple[Any, ...]] = []
    expected: list[Any] = []
    for i in range(600):
        rows, width = 1 + i % 3, 2 + i % 2  # of shapes that go together, and others
        x = np.full((rows, width), float(i), np.float32)
        model = ("rows", "sum", "double", "echo")[i % 4]
        requests.append((model, torch.from_numpy(x) if i % 5 else x))
        expected.append(x.sum() if model == "sum" else x if model == "echo" else 2 * x)

    results = list(pool.stream(iter(requests)))

    assert len(results) == len(requests)
    for (model, given), result, right in zip(requests, results, expected):
        value = result["y"] if model == "rows" else result
        assert isinstance(value, np.ndarray | np.generic) == isinstance(given, np.ndarray) and np.array_equal(np.asarray(value), right), (
            model
        )


def test_a_row_that_fails_or_kills_does_not_fail_its_bunch(pool: Pool) -> None:
    inputs = [torch.full((1, 2), float(i)) for i in range(40)]
    inputs[7], inputs[23] = torch.full((1, 2), RAISE), torch.full((1, 2), EXIT)
    results = pool.map("rows", inputs)

    for i in range(7):
        assert next(results)["y"][0, 0] == 2 * i
    with pytest.raises(ValueError, match="bad"):
        next(results)
    rest = pool.map("rows", inputs[8:])
    for i in range(8, 23):
        assert next(rest)["y"][0, 0] == 2 * i
    with pytest.raises(RankwiseError, match="ended 2 workers"):
        next(rest)
    assert [y["y"][0, 0] for y in pool.map("rows", inputs[24:])] == [2 * i for i in range(24, 40)]


def test_a_slow_source_does_not_hold_up_what_it_gave(pool: Pool) -> None:
    """Results come out while the source still has more to give."""
    pool.submit("rows", torch.zeros(1, 2)).result(60)  # it is loaded, so that only the source is slow
    seen, seen_before_the_last = 0, 0

    def slowly() -> Iterator[Any]:
        nonlocal seen_before_the_last
        for i in range(30):
            time.sleep(0.02)
            seen_before_the_last = seen
            yield torch.full((1, 2), float(i))

    for i, result in enumerate(pool.map("rows", slowly())):
        assert result["y"][0, 0] == 2 * i
        seen += 1
    assert seen == 30 and seen_before_the_last > 0


def test_a_worker_that_moved_between_cores_may_still_run_on_all(pool: Pool) -> None:
    """Quick tasks that follow each other closely make it move to a core of its own."""
    for i in range(300):
        assert pool.submit("echo", torch.tensor([float(i)])).result(60).item() == i
    for worker in pool.stats()["workers"]:  # may be on its way: it leaves one core out for a moment, then takes all again
        deadline = time.monotonic() + 30
        while os.sched_getaffinity(worker["pid"]) != os.sched_getaffinity(0) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert os.sched_getaffinity(worker["pid"]) == os.sched_getaffinity(0)


def test_several_threads_and_event_loops_at_once(pool: Pool) -> None:
    errors: list[BaseException] = []

    def plain(base: int) -> None:
        for i in range(100):
            assert pool.submit("double", torch.tensor([float(base + i)])).result(60).item() == 2.0 * (base + i)

    async def loop(base: int) -> None:
        values = await asyncio.gather(*[pool.asubmit("double", np.array([float(base + i)])) for i in range(50)])
        assert [value[0] for value in values] == [2.0 * (base + i) for i in range(50)]
        assert [y[0] async for y in pool.amap("double", (np.array([float(i)]) for i in range(20)))] == [2.0 * i for i in range(20)]

    def guarded(act: Callable[[], object]) -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    acts = [lambda: plain(1000), lambda: plain(2000), lambda: asyncio.run(loop(3000)), lambda: asyncio.run(loop(4000))]
    threads = [threading.Thread(target=guarded, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_callbacks_may_submit_again(pool: Pool) -> None:
    done: list[Any] = []
    finished = threading.Event()

    def again(future: Any) -> None:
        done.append(future.result().item())
        if len(done) < 4:
            pool.submit("double", future.result()).add_done_callback(again)
        else:
            finished.set()

    pool.submit("double", torch.tensor([1.0])).add_done_callback(again)

    assert finished.wait(30) and done == [2.0, 4.0, 8.0, 16.0]


@pytest.mark.parametrize("end", [SystemExit(1), asyncio.CancelledError()], ids=["sys.exit", "cancelled"])
def test_a_callback_that_would_end_its_thread_costs_nobody_a_result(pool: Pool, end: BaseException) -> None:
    told = threading.Event()

    def callback(_: Any) -> None:
        told.set()
        if threading.current_thread() is not threading.main_thread():  # the task was done before this was added
            raise end

    other = pool.submit("sleeper", 0.3)
    pool.submit("sleeper", 0.1).add_done_callback(callback)  # the pool's own thread calls it, because nobody waits

    assert told.wait(60) and other.result(60)
    assert pool.submit("double", torch.tensor([1.0])).result(60).item() == 2.0


def test_a_callback_may_close_the_pool() -> None:
    with Pool({"sleeper": Model(f"{HERE}:sleeper")}, workers=2) as pool:
        closed, other = threading.Event(), pool.submit("sleeper", 0.5)
        pool.submit("sleeper", 0.1).add_done_callback(lambda _: (pool.close(), closed.set()))

        assert closed.wait(60) and other.result(60)


def test_rows_of_several_requests_run_together_and_come_back_to_their_own(pool: Pool) -> None:
    pool.submit("rows", torch.zeros(1, 3)).result(60)
    futures = [pool.submit("rows", torch.full((1 + i % 2, 3), float(i))) for i in range(30)]
    results = [future.result(60) for future in futures]

    assert all(result["y"].equal(torch.full((1 + i % 2, 3), 2.0 * i)) for i, result in enumerate(results))
    numbers = pool.stats()["models"]["rows"]
    assert numbers["mean_batch"] > 2 and numbers["finding"] is None


def test_a_large_request_is_cut_and_joined(pool: Pool) -> None:
    x = torch.arange(100.0).view(50, 2)
    result = pool.submit("rows", x).result(60)

    assert result["y"].equal(2 * x)  # the model takes no more than 8 rows


def test_shapes_that_do_not_fit_are_not_mixed(pool: Pool) -> None:
    futures = [(width, pool.submit("rows", torch.full((2, width), 1.0))) for width in (2, 3, 2, 4, 3, 2) * 5]
    assert all(future.result(60)["y"].shape == (2, width) for width, future in futures)


def test_a_row_that_fails_does_not_fail_its_neighbours(pool: Pool) -> None:
    values = [1.0, 2.0, RAISE, 3.0, 4.0]
    futures = [pool.submit("rows", torch.full((1, 3), value)) for value in values]

    for value, future in zip(values, futures):
        if value == RAISE:
            assert isinstance(future.exception(60), ValueError)
        else:
            assert future.result(60)["y"][0, 0].item() == 2 * value


def test_a_row_that_kills_the_worker_does_not_take_its_neighbours_along(pool: Pool) -> None:
    values = [1.0, 2.0, EXIT, 3.0, 4.0]
    futures = [pool.submit("rows", torch.full((1, 3), value)) for value in values]

    assert [future.exception(60) is not None for future in futures] == [False, False, True, False, False]


def test_memory_that_runs_out_halves_the_batch(pool: Pool) -> None:
    x = torch.arange(16.0).view(16, 1)
    assert pool.submit("hungry", x).result(60).equal(x + 1)
    assert pool.stats()["models"]["hungry"]["max_batch"] < 16


def test_a_model_whose_output_has_no_rows_is_not_batched(pool: Pool) -> None:
    futures = [pool.submit("sum", torch.full((2, 2), float(i))) for i in range(20)]
    assert [future.result(60).item() for future in futures] == [4.0 * i for i in range(20)]


def test_workers_have_their_share_of_the_cores_and_see_no_gpu(pool: Pool) -> None:
    facts = pool.submit("facts").result(60)
    share = str(pool.plan.seats[0].threads)

    assert str(facts["threads"]) == facts["omp"] == share
    assert facts["gpu"] == "" and facts["training"] is False
    assert "2 workers on cpu" in pool.plan.why


def test_a_flood_on_one_model_does_not_starve_another(pool: Pool) -> None:
    flood = [pool.submit("sleeper", 0.01) for _ in range(100)]
    pool.submit("double", torch.ones(1)).result(60)

    assert sum(future.done() for future in flood) < 80  # it did not wait for those that came before it
    for future in flood:
        future.cancel()


def test_a_second_replica_comes_with_the_load(pool: Pool) -> None:
    futures = [pool.submit("sleeper", 0.02) for _ in range(60)]
    for future in futures:
        future.result(60)
    assert pool.stats()["models"]["sleeper"]["replicas"] == 2


def test_an_ensemble_combines(pool: Pool) -> None:
    x = torch.tensor([[1.0, 5.0]])
    assert pool.ensemble(["echo", "double"]).submit(x).result(60).equal(1.5 * x)
    assert pool.ensemble(["echo", "double", "echo"], combine="vote").submit(torch.tensor([3, 4])).result(60).tolist() == [3, 4]
    assert pool.ensemble(["echo", "double"], combine="vote").submit(x).result(60).tolist() == [1]
    assert list(pool.ensemble(["echo", "double"], combine=lambda ys: (ys[1] - ys[0]).sum().item()).map([x, x])) == [6.0, 6.0]
    with pytest.raises(UsageError):
        pool.ensemble(["nobody"])
    with pytest.raises(UsageError):
        pool.ensemble(["echo"], combine="median")


def test_a_split_keeps_to_its_weights_and_a_key_to_its_model(pool: Pool) -> None:
    split = pool.split({"echo": 0.8, "double": 0.2})
    chosen = Counter(split.choose(f"user-{i}") for i in range(2000))

    assert 1500 < chosen["echo"] < 1700
    assert len({split.choose("user-7") for _ in range(5)}) == 1
    assert split.submit(torch.ones(1), key="user-7").result(60).item() in (1.0, 2.0)


def test_a_router_asks_for_each_input(pool: Pool) -> None:
    router = pool.router(lambda x: "double" if x.sum() > 3 else "echo")
    assert [y.item() for y in router.map([torch.tensor([1.0]), torch.tensor([4.0])])] == [1.0, 8.0]


def test_numbers_for_prometheus(pool: Pool) -> None:
    pool.submit("double", torch.ones(1)).result(60)
    registry = CollectorRegistry()
    pool.register_metrics(registry)
    text = generate_latest(registry).decode()

    done = pool.stats()["models"]["double"]["completed"]
    assert f'rankwise_pool_completed_total{{model="double",pool="1"}} {float(done)}' in text
    assert 'rankwise_pool_latency_seconds_bucket{le="+Inf",model="double",pool="1"}' in text


def test_several_pools_show_their_numbers_in_one_registry(pool: Pool) -> None:
    registry = CollectorRegistry()
    pool.register_metrics(registry, name="first")
    pool.register_metrics(registry, name="first")
    with Pool({"double": Model(f"{HERE}:moody")}, workers=0) as other:
        other.register_metrics(registry)
        with pytest.raises(UsageError, match="called 'first'"):
            other.register_metrics(registry, name="first")
        other.submit("double", torch.ones(1)).result()
        lines = generate_latest(registry).decode().splitlines()

    shown = [line for line in lines if line.startswith('rankwise_pool_completed_total{model="double"')]
    assert len(shown) == 2 and 'rankwise_pool_completed_total{model="double",pool="1"} 1.0' in shown


def test_top_shows_the_pool(pool: Pool, run_rankwise: Any) -> None:
    shown = run_rankwise("top", "--once")
    assert "echo" in shown.stdout and "worker" in shown.stdout and shown.code == 0

    looks = json.loads(run_rankwise("top", "--json", "--pid", str(pool.stats()["pid"])).stdout)
    assert any("rows" in look["models"] for look in looks)


def test_top_without_a_pool_says_so(run_rankwise: Any) -> None:
    wrong = run_rankwise("top", "--pid", "1")
    assert wrong.code == 2 and "has no pool" in wrong.text and "Traceback" not in wrong.text


def test_in_process_runs_the_same(tmp_path: Any) -> None:
    with Pool({"double": Model(f"{HERE}:moody"), "broken": Model(f"{HERE}:broken")}, workers=0) as pool:
        assert pool.submit("double", torch.tensor([2.0])).result().item() == 4.0
        assert pool.submit("double", np.array([2.0])).result().tolist() == [4.0]
        assert isinstance(pool.submit("double", torch.tensor([RAISE])).exception(), ValueError)
        assert "no such layer" in str(pool.submit("broken", 1).exception())
        assert [y.item() for y in pool.map("double", [torch.ones(1)] * 3)] == [2.0] * 3
        assert pool.stats()["models"]["double"]["completed"] == 5


def test_weights_and_programs_are_loaded(tmp_path: Any) -> None:
    from tests.pool.models import linear

    model = linear(4, 2)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(0.5)
    torch.save(model.state_dict(), tmp_path / "last.pt")
    torch.export.save(torch.export.export(model, (torch.zeros(3, 4),)), tmp_path / "linear.pt2")
    models = {
        "weights": Model(f"{HERE}:linear", weights=tmp_path / "last.pt", args=(4, 2)),
        "program": Model(tmp_path / "linear.pt2"),
    }
    with Pool(models, workers=0) as pool:
        assert pool.submit("weights", torch.ones(1, 4)).result().tolist() == [[4.5, 4.5]]
        assert pool.submit("program", torch.ones(3, 4)).result()[0].tolist() == [4.5, 4.5]


@pytest.mark.live
def test_the_class_of_a_model_is_a_build() -> None:
    with Pool({"linear": Model(torch.nn.Linear, args=(3, 2))}, workers=1) as pool:
        assert pool.submit("linear", torch.ones(4, 3)).result(60).shape == (4, 2)
