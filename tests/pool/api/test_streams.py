"""map, stream and amap where room is short, sources break, or requests cannot be sent: nothing hangs, and everything has its place."""

from __future__ import annotations

import asyncio
import itertools
import resource
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rankwise.errors import UsageError  # noqa: E402
from rankwise.pool import DeadlineExceeded, Model, Pool, PoolFull  # noqa: E402
from rankwise.pool.api import streams  # noqa: E402
from rankwise.pool.api.streams import Stream, failed  # noqa: E402

HERE = "tests.pool.models"
MEGABYTE = 250_000  # numbers of float32


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    models = {
        "echo": Model(f"{HERE}:echo"),
        "double": Model(f"{HERE}:moody"),
        "sleeper": Model(f"{HERE}:sleeper"),
        "rows": Model(f"{HERE}:rows", max_batch=8),
    }
    with Pool(models, workers=1, max_queue=4, lane_bytes=8 << 20) as pool:
        for model in ("echo", "double"):
            pool.submit(model, torch.zeros(1)).result(60)
        yield pool


def taken(results: Iterator[Any]) -> tuple[list[Any], BaseException | None]:
    """What came, and what it ended with."""
    found = []
    try:
        for result in results:
            found.append(result)
    except Exception as error:
        return found, error
    return found, None


async def taken_async(results: AsyncIterator[Any]) -> tuple[list[Any], BaseException | None]:
    found = []
    try:
        async for result in results:
            found.append(result)
    except Exception as error:
        return found, error
    return found, None


def test_inputs_that_were_refused_at_first_are_still_their_own(pool: Pool) -> None:
    inputs = (torch.full((MEGABYTE // 4,), float(i)) for i in range(60))
    for i, y in enumerate(pool.map("double", inputs)):
        assert y.eq(2 * i).all()


def test_results_that_are_kept_do_not_fill_the_lane(pool: Pool) -> None:
    kept = [pool.submit("echo", torch.full((MEGABYTE,), float(i))).result(60) for i in range(20)]
    kept += pool.map("echo", (torch.full((MEGABYTE,), float(i)) for i in range(20, 40)))

    assert [y[0].item() for y in kept] == [float(i) for i in range(40)]


def test_a_small_part_of_an_input_does_not_hold_all_of_it(pool: Pool) -> None:
    before = pool.stats()["lanes"]["inputs_used_bytes"]
    x = pool.empty(MEGABYTE * 2, "float32")
    (kept, _) = pool.submit("echo", x[: MEGABYTE // 3], 1).result(60)
    del x

    assert len(kept) == MEGABYTE // 3 and pool.stats()["lanes"]["inputs_used_bytes"] == before


@pytest.mark.parametrize("act", [lambda pool, x: pool.submit("echo", x), lambda pool, x: next(pool.map("echo", [x]))])
def test_an_input_that_never_fits_is_a_finding_with_both_sizes(pool: Pool, act: Callable[[Pool, Any], Any]) -> None:
    with pytest.raises(UsageError, match="10 MiB, more than ever fits the lane, which is 8 MiB") as error:
        act(pool, np.zeros(10 << 20, np.uint8))
    assert "lane_bytes" in "".join(error.value.finding.next)


def test_a_request_without_room_waits_until_the_results_before_it_are_fetched(pool: Pool) -> None:
    """The first result stands on the lane, where the second request has no room beside it."""
    inputs = [torch.full((MEGABYTE * size,), float(size)) for size in (3, 6, 1)]
    results = pool.map("echo", iter(inputs))

    assert [float(next(results)[0]) for _ in inputs] == [3.0, 6.0, 1.0]


def test_what_the_caller_holds_of_the_lane_is_said_to_be_the_callers(pool: Pool) -> None:
    held = pool.empty(MEGABYTE * 5, "float32")
    inputs = [torch.ones(1), torch.zeros(MEGABYTE * 5), torch.ones(1)]
    for found, error in (taken(pool.map("echo", inputs)), asyncio.run(taken_async(pool.amap("echo", inputs)))):
        assert len(found) == 1 and isinstance(error, PoolFull)
        assert "5 MiB of its 8 MiB" in str(error) and "0 B are inputs" in error.finding.why and "pool.empty" in error.finding.why
    with pytest.raises(PoolFull, match=r"for pool\.empty"):
        pool.empty(MEGABYTE * 5, "float32")
    assert len(held) == MEGABYTE * 5


def test_a_stream_waits_for_the_tasks_of_others_to_make_room(pool: Pool) -> None:
    threads = [threading.Thread(target=lambda: list(pool.map("sleeper", [0.002] * 40))) for _ in range(3)]
    for thread in threads:
        thread.start()

    async def gather() -> int:
        return len([y async for y in pool.amap("sleeper", [(0.002, i) for i in range(40)])])

    assert len(list(pool.map("sleeper", [0.002] * 40))) == 40
    assert asyncio.run(gather()) == 40
    for thread in threads:
        thread.join()


def broken_source() -> Iterator[Any]:
    yield from (1, 2)
    raise KeyError("the source broke")


async def broken_async_source() -> AsyncIterator[Any]:
    for i in (1, 2):
        yield i
    raise KeyError("the source broke")


SOURCES: dict[str, tuple[Callable[[Pool], Any], type[Exception]]] = {
    "the source breaks": (lambda pool: pool.map("echo", broken_source()), KeyError),
    "one cannot be sent": (lambda pool: pool.map("echo", [1, 2, lambda: 3, 4]), UsageError),
    "no such model": (lambda pool: pool.stream([("echo", 1), ("echo", 2), ("nobody", 3)]), UsageError),
    "the source breaks, async": (lambda pool: pool.amap("echo", broken_source()), KeyError),
    "an async source breaks": (lambda pool: pool.amap("echo", broken_async_source()), KeyError),
    "one cannot be sent, async": (lambda pool: pool.amap("echo", [1, 2, lambda: 3, 4]), UsageError),
}


@pytest.mark.parametrize("case", SOURCES)
def test_what_goes_wrong_on_the_way_in_comes_after_the_results_before_it(pool: Pool, case: str) -> None:
    start, kind = SOURCES[case]
    results = start(pool)
    found, error = taken(results) if hasattr(results, "__next__") else asyncio.run(taken_async(results))

    assert found == [1, 2] and isinstance(error, kind)


def test_an_input_that_cannot_be_sent_names_its_model(pool: Pool) -> None:
    with pytest.raises(UsageError, match="an input of model 'echo' cannot be sent to a worker: function"):
        pool.submit("echo", lambda: 3)


def test_amap_takes_what_map_takes(pool: Pool) -> None:
    async def numbers() -> AsyncIterator[Any]:
        for i in range(100):
            yield (0.0, i)

    async def go() -> None:
        assert [y[2] async for y in pool.amap("sleeper", numbers(), priority=1)] == list(range(100))
        found, error = await taken_async(pool.amap("sleeper", [0.0, 0.5, 0.0], deadline_s=0.25))
        assert len(found) == 1 and isinstance(error, DeadlineExceeded)

    asyncio.run(go())
    with Pool({"echo": Model(f"{HERE}:echo")}, workers=0) as local:
        assert asyncio.run(taken_async(local.amap("echo", [1, 2, 3]))) == ([1, 2, 3], None)


def test_amap_gives_results_while_its_source_waits_for_them(pool: Pool) -> None:
    async def go() -> list[Any]:
        fetched = asyncio.Event()
        found = []

        async def source() -> AsyncIterator[Any]:
            for i in range(5):
                fetched.clear()
                yield i
                await fetched.wait()

        async for y in pool.amap("echo", source()):
            found.append(y)
            fetched.set()
        return found

    assert asyncio.run(asyncio.wait_for(go(), 30)) == list(range(5))


def test_an_async_source_may_enter_what_has_to_be_left_in_the_same_task(pool: Pool) -> None:
    tasks = []

    async def source(limited_at: int | None) -> AsyncIterator[Any]:
        async with asyncio.timeout(None) as limit:
            for i in range(4):
                tasks.append(asyncio.current_task())
                if i == limited_at:
                    limit.reschedule(asyncio.get_running_loop().time() + 0.01)
                if i == 3 and limited_at is not None:
                    await asyncio.sleep(60)
                yield i

    async def slowly() -> None:
        async for _ in pool.amap("echo", source(0), window=1):
            await asyncio.sleep(0.1)

    async def go() -> None:
        assert await taken_async(pool.amap("echo", source(None))) == ([0, 1, 2, 3], None) and len(set(tasks)) == 1
        found, error = await taken_async(pool.amap("echo", source(3)))
        assert found == [0, 1, 2] and isinstance(error, TimeoutError)
        with pytest.raises(asyncio.CancelledError):  # as in a loop over the source itself
            await slowly()

    asyncio.run(asyncio.wait_for(go(), 50))


def test_leaving_amap_early_cancels_what_waits(pool: Pool) -> None:
    before = pool.stats()["models"]["sleeper"]["cancelled"]

    async def go() -> None:
        results = pool.amap("sleeper", [(0.02, i) for i in range(50)], window=4)
        assert (await anext(results))[2] == 0
        await results.aclose()

    asyncio.run(go())
    assert pool.stats()["models"]["sleeper"]["cancelled"] > before


WRONG: list[dict[str, Any]] = [
    {"priority": "high"},
    {"priority": None},
    {"priority": 0.5},
    {"deadline_s": "1"},
    {"deadline_s": float("nan")},
    {"deadline_s": torch.ones(1)},
    {"window": 0},
    {"window": "many"},
]


CALLS = [(act, options) for act in ("submit", "map", "amap") for options in WRONG if act != "submit" or "window" not in options]


@pytest.mark.parametrize(("act", "options"), CALLS)
def test_options_that_mean_nothing_are_refused_at_once_and_spoil_nothing(pool: Pool, act: str, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        getattr(pool, act)("echo", [1], **options)
    assert pool.submit("echo", 1, priority=np.int64(3), deadline_s=np.float32(60)).result(60) == 1


@pytest.mark.parametrize("preempted", [False, True])
def test_a_source_is_not_slow_where_its_thread_had_to_wait_for_a_core(preempted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that keep all cores busy take them from the caller as well; groups must not stay small for that."""
    switches = itertools.count()
    used = SimpleNamespace(ru_nivcsw=0)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_nivcsw=next(switches)) if preempted else used)
    seen = []

    class Watched(Stream):
        def _take(self, request: Any, is_slow: bool) -> None:
            seen.append(is_slow)
            self._waiting.append(failed(ValueError()))

    def source() -> Iterator[int]:
        for i in range(4):
            time.sleep(0.01)
            yield i

    taken(Watched(lambda: Future(), lambda: False).results(source()))
    assert seen[0] is not preempted


def test_the_garbage_collector_may_end_a_stream_in_the_middle_of_a_step(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_CANCEL_S", 0.05)
    results = pool.map("sleeper", [0.05] * 4)
    next(results)
    backend: Any = pool._backend
    ended = threading.Event()

    def collect() -> None:
        with backend.state.lock:  # the pool's own code allocates here, so the collector may run
            results.close()  # type: ignore[attr-defined]
        ended.set()

    threading.Thread(target=collect, daemon=True).start()

    assert ended.wait(60)
    assert pool.submit("double", torch.ones(1)).result(60).tolist() == [2.0]
