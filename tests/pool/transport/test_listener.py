"""An asyncio loop reads the workers' answers itself: nothing is lost, late or stuck, whoever else asks, and whatever becomes of workers."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch

from rankwise.pool import DeadlineExceeded, Model, Pool
from rankwise.pool.transport.listener import Timer

LONG_S = 60
HERE = "tests.pool.transport.test_listener"


def double() -> object:
    return lambda x: x * 2


def sleepy() -> object:
    def run(x: torch.Tensor) -> torch.Tensor:
        time.sleep(float(x.max()))
        return x

    return run


@pytest.fixture
def pool() -> Iterator[Pool]:
    models = {
        "double": Model(f"{HERE}:double"),
        "batched": Model(f"{HERE}:double", max_batch=8, max_delay_ms=20),
        "sleepy": Model(f"{HERE}:sleepy"),
    }
    with Pool(models, workers=2) as pool:
        yield pool


@pytest.mark.live
def test_the_loops_own_thread_reads_the_answers(pool: Pool) -> None:
    read_by: set[int] = set()

    async def main() -> list[float]:
        stop = pool.read_in(asyncio.get_running_loop())
        try:
            futures = [pool.submit(name, torch.full((1, 2), i)) for i in range(100) for name in ("double", "batched")]
            for future in futures:
                future.add_done_callback(lambda _: read_by.add(threading.get_ident()))
            return [float((await asyncio.wrap_future(future))[0, 0]) for future in futures]
        finally:
            stop()

    assert asyncio.run(main()) == [2.0 * i for i in range(100) for _ in range(2)]
    assert threading.get_ident() in read_by
    assert [float(pool.submit("double", torch.ones(1)).result(LONG_S)) for _ in range(20)] == [2.0] * 20  # by its own thread again
    assert pool.submit("batched", torch.ones(1, 1)).result(LONG_S).item() == 2


def test_threads_may_ask_meanwhile(pool: Pool) -> None:
    wrong: list[object] = []

    def ask(first: int) -> None:
        for i in range(first, first + 60):
            value = pool.submit("double", torch.full((1,), i)).result(LONG_S)
            if float(value) != 2 * i:
                wrong.append((i, value))

    async def main() -> None:
        stop = pool.read_in(asyncio.get_running_loop())
        try:
            threads = [asyncio.to_thread(ask, first) for first in (0, 1000)]
            own = [pool.asubmit("batched", torch.full((1, 1), i)) for i in range(200)]
            found = await asyncio.wait_for(asyncio.gather(*threads, *own), LONG_S)
            assert [float(value) for value in found[2:]] == [2.0 * i for i in range(200)]
        finally:
            stop()

    asyncio.run(main())
    assert not wrong


@pytest.mark.live
def test_deadlines_and_lone_rows_are_kept_by_the_loops_own_timer(pool: Pool) -> None:
    async def main() -> None:
        stop = pool.read_in(asyncio.get_running_loop())
        try:
            busy = [pool.submit("sleepy", torch.full((1,), 1.5)) for _ in range(2)]
            began = time.monotonic()
            with pytest.raises(DeadlineExceeded):
                await pool.asubmit("double", torch.ones(1), deadline_s=0.2)
            assert time.monotonic() - began < 1.2  # while both workers sleep
            await asyncio.gather(*map(asyncio.wrap_future, busy))
            assert float(await asyncio.wait_for(pool.asubmit("batched", torch.ones(1, 1)), LONG_S)) == 2
        finally:
            stop()

    asyncio.run(main())


def test_what_is_asked_in_one_turn_of_the_loop_runs_together(pool: Pool) -> None:
    async def main() -> list[float]:
        stop = pool.read_in(asyncio.get_running_loop())
        try:
            await asyncio.gather(pool.asubmit("sleepy", torch.zeros(1)), pool.asubmit("batched", torch.ones(8, 1)))  # loaded
            busy = pool.asubmit("sleepy", torch.full((1,), 0.2))
            found = await asyncio.gather(busy, *[pool.asubmit("batched", torch.full((1, 1), i)) for i in range(8)])
            return [float(value) for value in found[1:]]
        finally:
            stop()

    assert asyncio.run(main()) == [2.0 * i for i in range(8)]
    batches = pool.stats()["models"]["batched"]["batches"]
    assert sum(count for count, _ in batches.values()) <= 3  # the one to load it; of the eight, perhaps the first by itself


def test_a_result_may_be_waited_for_in_the_loops_thread(pool: Pool) -> None:
    async def main() -> list[float]:
        stop = pool.read_in(asyncio.get_running_loop())
        try:
            asked = [pool.submit("batched", torch.full((1, 1), i)) for i in range(3)]
            return [float(future.result(LONG_S)) for future in asked]
        finally:
            stop()

    pool.submit("batched", torch.ones(1, 1)).result(LONG_S)
    assert asyncio.run(main()) == [0.0, 2.0, 4.0]


def test_the_loops_thread_may_wait_for_what_no_worker_has_time_for(pool: Pool) -> None:
    both = pool.ensemble(["double", "batched"])

    async def main() -> list[float]:
        stop = pool.read_in(asyncio.get_running_loop())
        try:
            pool.load("sleepy").result(LONG_S)
            for _ in range(6):
                pool.submit("sleepy", torch.full((1,), 0.05))
            asked = pool.submit("batched", torch.ones(1, 1)), both.submit(torch.ones(1, 1)), pool.submit("double", torch.ones(1, 1))
            return [float(future.result(LONG_S)) for future in asked]
        finally:
            stop()

    assert asyncio.run(main()) == [2.0, 2.0, 2.0]


def test_a_worker_that_dies_costs_nothing(pool: Pool) -> None:
    async def main() -> list[float]:
        stop = pool.read_in(asyncio.get_running_loop())
        try:
            tasks = [asyncio.ensure_future(pool.asubmit("sleepy", torch.full((1,), 0.02))) for _ in range(60)]
            await tasks[0]
            os.kill(pool.stats()["workers"][0]["pid"], signal.SIGKILL)
            return [float(value) for value in await asyncio.wait_for(asyncio.gather(*tasks), LONG_S)]
        finally:
            stop()

    assert asyncio.run(main()) == [pytest.approx(0.02)] * 60


def test_who_stops_waiting_cancels_what_has_not_begun(pool: Pool) -> None:
    async def main() -> None:
        stop = pool.read_in(asyncio.get_running_loop())
        try:
            busy = [pool.submit("sleepy", torch.full((1,), 0.5)) for _ in range(2)]
            waiting = asyncio.ensure_future(pool.asubmit("sleepy", torch.full((1,), 30.0)))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await asyncio.gather(*map(asyncio.wrap_future, busy))
            assert pool.stats()["models"]["sleepy"]["cancelled"] == 1
        finally:
            stop()

    asyncio.run(main())


@pytest.mark.live
def test_a_second_loop_leaves_it_to_the_first(pool: Pool) -> None:
    async def main() -> None:
        stop = pool.read_in(asyncio.get_running_loop())
        pool.read_in(asyncio.get_running_loop())()
        assert float(await asyncio.wait_for(pool.asubmit("double", torch.ones(1)), LONG_S)) == 2
        stop()

    asyncio.run(main())


def test_without_a_free_file_it_says_what_is_short() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        with pytest.raises(OSError) as raised:
            Timer()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert raised.value.errno == errno.EMFILE


def test_who_asks_whether_a_result_is_there_does_not_wait(pool: Pool) -> None:
    pool.load("sleepy").result(LONG_S)
    future, looks = pool.submit("sleepy", torch.full((1,), 0.5)), 0
    while not future.done():
        with suppress(TimeoutError):
            future.result(0)
        looks += 1
    assert looks > 50  # it would be 5 if each waited for as long as a read waits
