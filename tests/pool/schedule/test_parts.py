"""Requests with more rows than run together, and outputs that have rows, seem to have them, or have none: always what the model says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rankwise.pool import DeadlineExceeded, Model, Pool  # noqa: E402
from rankwise.pool.memory.encoding import leaves  # noqa: E402
from tests.pool.models import OUTPUTS, RAISE  # noqa: E402

HERE = "tests.pool.models"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    models = {name: Model(f"{HERE}:gives", args=(name,), max_batch=4) for name in OUTPUTS}
    others = {
        "rows": Model(f"{HERE}:rows", max_batch=4, replicas=1),
        "hungry": Model(f"{HERE}:hungry_sum", max_batch=16),
        "always four, streamed": Model(f"{HERE}:gives", args=("always four",), max_batch=4),
    }
    with Pool({**models, **others}, workers=1, max_queue=12) as pool:
        yield pool


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    pairs = list(zip(_flat(a), _flat(b)))
    return len(_flat(a)) == len(_flat(b)) and all(x.equal(y) if isinstance(x, torch.Tensor) else x == y for x, y in pairs)


def _flat(value: Any) -> list[Any]:
    return [value.y] if type(value).__name__ == "Own" else leaves(value)


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_request_that_is_cut_gives_what_the_model_gives_for_all_of_it(pool: Pool, name: str) -> None:
    for rows in (8, 10):
        x = torch.arange(3.0 * rows).view(rows, 3)
        assert same(pool.submit(name, x).result(60), OUTPUTS[name](x.clone())), rows


@pytest.mark.parametrize("name", OUTPUTS)
def test_rows_that_run_together_give_what_each_gives_alone(pool: Pool, name: str) -> None:
    inputs = [torch.full((1, 3), float(i)) for i in range(8)]
    futures = [pool.submit(name, x) for x in inputs]

    for x, submitted, mapped in zip(inputs, futures, pool.map(name, inputs)):
        assert same(submitted.result(60), OUTPUTS[name](x.clone())) and same(mapped, OUTPUTS[name](x.clone()))


def test_a_bunch_of_a_stream_is_not_taken_for_rows_either(pool: Pool) -> None:
    assert [y.tolist() for y in pool.map("always four, streamed", [torch.ones(1, 3)] * 8)] == [[0.0, 1.0, 2.0, 3.0]] * 8


@pytest.mark.parametrize(("name", "batched"), [("named", 4), ("ordered", 4), ("largest", 4), ("counted", 1), ("always four", 1)])
def test_only_what_has_rows_is_batched(pool: Pool, name: str, batched: int) -> None:
    pool.submit(name, torch.ones(8, 3)).result(60)
    assert pool.stats()["models"][name]["max_batch"] == batched


def test_halves_that_do_not_make_one_answer_are_not_given_as_one(pool: Pool) -> None:
    error = pool.submit("hungry", torch.ones(8, 1)).exception(60)

    assert error is not None and "memory" in str(error)
    assert pool.stats()["models"]["hungry"]["max_batch"] == 1
    assert pool.submit("hungry", torch.ones(4, 1)).result(60) == 8


def test_a_request_of_more_parts_than_may_wait_runs_and_leaves_room_for_others(pool: Pool) -> None:
    pool.submit("rows", torch.zeros(1, 2)).result(60)
    x = torch.arange(400.0).view(200, 2)
    large = pool.submit("rows", x)
    others = [pool.submit("rows", torch.full((1, 2), float(i))) for i in range(5)]

    assert large.result(60)["y"].equal(2 * x)
    assert [other.result(60)["y"][0, 0].item() for other in others] == [2.0 * i for i in range(5)]
    (mapped,) = pool.map("rows", [x])
    assert mapped["y"].equal(2 * x)


def test_parts_of_a_request_that_is_over_wait_no_longer(pool: Pool) -> None:
    pool.submit("rows", torch.zeros(1, 2)).result(60)

    def queued() -> int:
        return int(pool.stats()["models"]["rows"]["queued"])

    bad = torch.zeros(400, 2)
    bad[0, 0] = RAISE
    assert isinstance(pool.submit("rows", bad).exception(60), ValueError)
    assert queued() == 0

    assert isinstance(pool.submit("rows", torch.zeros(400, 2), deadline_s=0.05).exception(60), DeadlineExceeded)
    assert queued() == 0

    running = pool.submit("rows", torch.zeros(200, 2))
    waiting = pool.submit("rows", torch.zeros(200, 3))
    before = queued()
    assert waiting.cancel() and queued() <= before - 50
    assert len(running.result(60)["y"]) == 200


@pytest.mark.live
def test_closing_waits_for_a_request_that_has_to_run_once_more() -> None:
    with Pool({"sum": Model(f"{HERE}:plain_sum", max_batch=4)}, workers=1) as pool:
        future = pool.submit("sum", torch.ones(10))
    assert future.result(0) == 10
