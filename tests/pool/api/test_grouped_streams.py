"""Rows of a stream that are put together on the lane: each result is its request's own, and no memory stays behind."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rankwise.pool import Model, Pool  # noqa: E402
from rankwise.pool.api.grouped_streams import GroupedStream  # noqa: E402
from tests.pool.models import RAISE  # noqa: E402

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


def odd_arrays(count: int, seed: int) -> list[Any]:
    """Mostly alike, with others among them that only look alike: of another type, shape, order of bytes or of memory."""
    chance = random.Random(seed)
    others = [
        lambda i: np.full((1, 10), i, np.float64),
        lambda i: np.full((10, 1), i, np.float32).T,
        lambda i: np.full((1, 10), i, ">f4"),
        lambda i: np.full((10,), i, np.float32),
        lambda i: np.full((2, 10), i, np.float32)[::2],
        lambda i: np.full((1, 10), i, np.int32),
        lambda i: np.float32(i) + np.zeros((), np.float32),
        lambda i: torch.full((1, 10), float(i)),
        lambda i: np.full((1, 10), i, np.float32).view(np.recarray),
    ]
    return [chance.choice(others)(i) if chance.random() < 0.2 else np.full((1, 10), i, np.float32) for i in range(count)]


def test_requests_that_run_one_by_one_are_answered_as_if_each_were_sent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = odd_arrays(1500, seed=3)
    counts = []
    send = GroupedStream._send_chunk
    monkeypatch.setattr(GroupedStream, "_send_chunk", lambda stream, chunk: (counts.append(chunk.count), send(stream, chunk))[1])
    with Pool({"echo": Model(f"{HERE}:echo")}, workers=1) as pool:
        for _ in range(2):  # the second time, it is known how long they take
            together = list(pool.map("echo", made))
        alone = [pool.submit("echo", x).result(60) for x in made[:300]]

    assert max(counts) > 8
    for i, (x, y) in enumerate(zip(made, together, strict=True)):
        assert y.shape == x.shape and float(np.asarray(y).reshape(-1)[0]) == i
    for one, many in zip(alone, together):
        assert type(one) is type(many) and one.dtype == many.dtype
