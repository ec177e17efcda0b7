"""Rows of a stream that are put together on the lane: each result is its request's own, and no memory stays behind."""

from __future__ import annotations

import gc
import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rankwise.pool import Model, Pool  # noqa: E402
from rankwise.pool.api import grouped_streams, streams  # noqa: E402
from rankwise.pool.api.grouped_streams import GroupedStream  # noqa: E402
from rankwise.pool.errors import Quarantined  # noqa: E402
from tests.pool.models import EXIT, RAISE  # noqa: E402

HERE = "tests.pool.models"
MODELS = ("first", "second", "third")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    models = {name: Model(f"{HERE}:rows", max_batch=16) for name in MODELS}
    with Pool(models, workers=2, lane_bytes=16 << 20) as pool:
        yield pool


def requests(count: int, seed: int) -> list[tuple[str, Any]]:
    """Tensors and arrays of one to five rows of several widths, in turns for three models, tiny ones among them."""
    chance = random.Random(seed)
    made: list[tuple[str, Any]] = []
    for i in range(count):
        rows, width = chance.choice((1, 1, 1, 2, 5)), chance.choice((4, 200, 4000))
        x = torch.full((rows, width), float(i % 1000)) + torch.arange(rows)[:, None]
        made.append((MODELS[i % 3], x.numpy() if chance.random() < 0.3 else x))
    return made


def wait_until_empty(pool: Pool) -> None:
    """Nothing of the lane is in use: what finalizers give back counts at the next look."""
    ends = time.monotonic() + 30
    while pool._backend.arena.used_bytes():  # type: ignore[attr-defined]
        assert time.monotonic() < ends
        gc.collect()
        time.sleep(0.01)


def test_each_result_is_its_requests_own(pool: Pool) -> None:
    made = requests(900, seed=1)

    for (_, x), y in zip(made, pool.stream(made), strict=True):
        doubled = y["y"]
        assert type(doubled) is type(x) and doubled.shape == x.shape and bool((doubled == 2 * x).all())
    assert sum(stats["orders"] for stats in pool.stats()["models"].values()) < 450
    del x, y, doubled
    wait_until_empty(pool)


def test_a_caller_may_change_its_array_as_soon_as_the_stream_has_taken_it(pool: Pool) -> None:
    buffer = np.zeros((1, 1000), np.float32)

    def source() -> Iterator[tuple[str, Any]]:
        for i in range(200):
            buffer[:] = i
            yield "first", buffer

    assert [float(y["y"][0, 0]) for y in pool.stream(source())] == [2.0 * i for i in range(200)]


def test_a_row_that_fails_fails_alone(pool: Pool) -> None:
    made = [("first", torch.full((1, 1000), RAISE if i == 40 else float(i))) for i in range(100)]
    results = pool.stream(made)

    for i in range(40):
        assert float(next(results)["y"][0, 0]) == 2.0 * i
    with pytest.raises(ValueError):
        next(results)


def test_a_stream_that_is_left_gives_its_memory_back(pool: Pool) -> None:
    results = pool.stream(requests(3000, seed=2))
    next(results)
    results.close()  # type: ignore[attr-defined]
    del results
    wait_until_empty(pool)


def test_more_rows_than_the_lane_holds_pass_through_it(pool: Pool) -> None:
    made = (("second", torch.full((3, 50_000), float(i))) for i in range(120))  # 72 MB, the lane has 16

    assert [float(y["y"][2, -1]) for y in pool.stream(made)] == [2.0 * i for i in range(120)]


def odd_arrays(count: int, seed: int, width: int = 10) -> list[Any]:
    """Mostly alike, with others among them that only look alike: of another type, shape, order of bytes or of memory."""
    chance = random.Random(seed)
    others = [
        lambda i: np.full((1, width), i, np.float64),
        lambda i: np.full((width, 1), i, np.float32).T,
        lambda i: np.full((1, width), i, ">f4"),
        lambda i: np.full((width,), i, np.float32),
        lambda i: np.full((2, width), i, np.float32)[::2],
        lambda i: np.full((1, width), i, np.int32),
        lambda i: np.float32(i) + np.zeros((), np.float32),
        lambda i: torch.full((1, width), float(i)),
        lambda i: np.full((1, width), i, np.float32).view(np.recarray),
    ]
    return [chance.choice(others)(i) if chance.random() < 0.2 else np.full((1, width), i, np.float32) for i in range(count)]


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The requests of each chunk that is sent. How many they are must not depend on how busy this machine is."""
    counts: list[int] = []
    monkeypatch.setattr(streams, "_SLOW_S", 600.0)
    monkeypatch.setattr(grouped_streams, "_CHUNK_S", 600.0)
    send = GroupedStream._send_chunk
    monkeypatch.setattr(GroupedStream, "_send_chunk", lambda stream, chunk: (counts.append(chunk.count), send(stream, chunk))[1])
    return counts


def learn(pool: Pool, name: str, made: list[Any]) -> None:
    """The first pass shows how long requests take, the second how large the results of a chunk are."""
    for _ in range(2):
        list(pool.map(name, made))


@pytest.mark.parametrize("width", [10, 4096, 4100])  # in messages, side by side on the lane, on the lane one by one
def test_requests_that_run_one_by_one_are_answered_as_if_each_were_sent_alone(width: int, counts: list[int]) -> None:
    made = odd_arrays(1500, seed=3, width=width)
    with Pool({"echo": Model(f"{HERE}:echo")}, workers=1) as pool:
        learn(pool, "echo", made[:200])
        together = list(pool.map("echo", made))
        alone = [pool.submit("echo", x).result(60) for x in made[:300]]

    assert max(counts) > 8
    for i, (x, y) in enumerate(zip(made, together, strict=True)):
        assert y.shape == x.shape and float(np.asarray(y).reshape(-1)[0]) == i
    for one, many in zip(alone, together):
        assert type(one) is type(many) and one.dtype == many.dtype


def test_requests_without_inputs_are_answered_among_others() -> None:
    x = np.ones((1, 4), np.float32)
    made: list[tuple[Any, ...]] = [("echo", x) if i % 7 else ("echo",) for i in range(300)]
    with Pool({"echo": Model(f"{HERE}:echo")}, workers=1) as pool:
        list(pool.stream([("echo", x)] * 50))  # now it is known how long they take
        found = list(pool.stream(made))
        alone = pool.submit("echo").result(60)

    assert [y if len(request) == 1 else y.tolist() for request, y in zip(made, found, strict=True)] == [
        alone if len(request) == 1 else x.tolist() for request in made
    ]


def wide(count: int, kind: str) -> list[Any]:
    """Arrays of 16 KB, which travel side by side on the lane, each full of its number."""
    made: list[Any] = [np.full((1, 4096), i, np.float32) for i in range(count)]
    return made if kind == "numpy" else [torch.from_numpy(array) for array in made]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_large_arrays_of_a_chunk_run_again_where_their_worker_is_killed(kind: str, counts: list[int]) -> None:
    made = wide(1500, kind)
    with Pool({"moody": Model(f"{HERE}:moody")}, workers=2, lane_bytes=64 << 20) as pool:
        learn(pool, "moody", wide(200, kind))
        for i, (x, y) in enumerate(zip(made, pool.map("moody", iter(made)), strict=True)):
            assert type(y) is type(x) and y.shape == x.shape and bool((y == 2 * i).all())
            if i in (100, 700):
                os.kill(next(worker["pid"] for worker in pool.stats()["workers"] if worker["pid"]), signal.SIGKILL)
        del x, y
        wait_until_empty(pool)

    assert max(counts) > 8


@pytest.mark.parametrize("wish", [RAISE, EXIT])
def test_a_large_array_that_is_to_blame_fails_alone(wish: float, counts: list[int]) -> None:
    made = wide(400, "numpy")
    made[300][0, 0] = wish
    with Pool({"moody": Model(f"{HERE}:moody")}, workers=2, lane_bytes=64 << 20) as pool:
        learn(pool, "moody", wide(200, "numpy"))
        results = pool.map("moody", made)
        assert [float(next(results)[0, 1]) for _ in range(300)] == [2.0 * i for i in range(300)]
        with pytest.raises(ValueError if wish == RAISE else Quarantined):
            next(results)
        results.close()  # type: ignore[attr-defined]
        wait_until_empty(pool)

    assert max(counts) > 8


@pytest.mark.parametrize("name", ["in_place", "keeper", "echo"])
def test_models_that_write_to_large_arrays_or_keep_them_change_no_others(name: str, counts: list[int]) -> None:
    made = wide(400, "torch")
    with Pool({"it": Model(f"{HERE}:{name}")}, workers=1, lane_bytes=64 << 20) as pool:
        learn(pool, "it", made)
        found = list(pool.map("it", made))

    assert max(counts) > 8
    assert [float(y[0, -1]) for y in found] == [i + 1.0 if name == "in_place" else 0.0 if name == "keeper" else i for i in range(400)]
    assert [float(x[0, -1]) for x in made] == list(range(400))
    assert (
        len({y.untyped_storage().data_ptr() for y in found}) == 400 == len({y.untyped_storage().nbytes() / y.nbytes for y in found}) * 400
    )


def test_a_small_lane_takes_large_arrays_of_many_models() -> None:
    models = {f"m{i}": Model(f"{HERE}:moody") for i in range(40)}
    made = [(f"m{i % 40}", x) for i, x in enumerate(wide(1200, "numpy"))]
    with Pool(models, workers=2, lane_bytes=1 << 20) as pool:
        for _ in range(2):
            assert [float(y[0, 0]) for y in pool.stream(made)] == [2.0 * i for i in range(1200)]
        wait_until_empty(pool)
