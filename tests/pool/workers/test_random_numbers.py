"""Random numbers: each worker has its own, a model is the same in all of them, and a seed gives the same wherever it runs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rankwise.errors import UsageError  # noqa: E402
from rankwise.pool import Model, Pool  # noqa: E402
from rankwise.pool.schedule.state import derived  # noqa: E402
from rankwise.pool.workers import model_building  # noqa: E402
from rankwise.pool.workers.model_building import seeded  # noqa: E402

DRAWING, DROPPING = "tests.pool.models:drawing", "tests.pool.models:dropping"


def models(replicas: int) -> dict[str, Model]:
    ten = {f"random{i}": Model(DRAWING) for i in range(10)}
    return {**ten, "m": Model(DRAWING, replicas=replicas), "fixed": Model(DRAWING, args=(3,), replicas=replicas), "drop": Model(DROPPING)}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(models(2), workers=2) as pool:
        yield pool


def from_both(pool: Pool, model: str, **options: Any) -> list[dict[str, Any]]:
    """Answers of both workers."""
    while True:
        futures = [pool.submit(model, 0.05, **options) for _ in range(8)]
        found = [future.result(60) for future in futures]
        if len({answer["pid"] for answer in found}) == 2:
            return found


def test_models_that_are_drawn_all_differ(pool: Pool) -> None:
    built = [pool.submit(f"random{i}").result(60)["built"] for i in range(10)]

    for numbers in zip(*built):  # of torch, numpy and random
        assert len(set(numbers)) == 10


def test_a_model_is_the_same_in_all_workers(pool: Pool) -> None:
    assert len({tuple(answer["built"]) for answer in from_both(pool, "m")}) == 1


@pytest.mark.parametrize("model", ["m", "fixed"])
def test_workers_draw_different_numbers_whatever_a_build_has_seeded(pool: Pool, model: str) -> None:
    found = from_both(pool, model)

    for numbers in zip(*[answer["drawn"] for answer in found]):
        assert len(set(numbers)) == len(found)


def test_a_task_with_a_seed_gives_the_same_wherever_it_runs(pool: Pool) -> None:
    drawn = {tuple(answer["drawn"]) for answer in from_both(pool, "m", seed=7)}
    with Pool(models(1), workers=0) as here:
        here.submit("m").result()
        state = torch.get_rng_state(), np.random.get_state()[1].tobytes(), random.getstate()
        drawn.add(tuple(here.submit("m", seed=7).result()["drawn"]))
        assert torch.equal(torch.get_rng_state(), state[0]) and np.random.get_state()[1].tobytes() == state[1]
        assert random.getstate() == state[2]
    generator = torch.Generator().manual_seed(7)

    assert drawn == {(float(torch.rand((), generator=generator)), np.random.RandomState(7).rand(), random.Random(7).random())}


def test_what_comes_after_a_task_with_a_seed_does_not_come_from_it(pool: Pool) -> None:
    before = [answer["drawn"][0] for answer in from_both(pool, "m", seed=7)]
    after = [answer["drawn"][0] for answer in from_both(pool, "m")]

    assert len(set(before)) == 1 and len({*before, *after}) == 1 + len(after)


def test_each_request_of_a_stream_has_its_own_seed_from_that_of_the_stream(pool: Pool) -> None:
    x = torch.ones(1, 50)
    first, second = list(pool.map("drop", [x] * 40, seed=1)), list(pool.stream([("drop", x)] * 40, seed=1))

    async def awaited() -> list[Any]:
        return [y async for y in pool.amap("drop", [x] * 40, seed=1)]

    assert torch.equal(torch.cat(first), torch.cat(second)) and torch.equal(torch.cat(first), torch.cat(asyncio.run(awaited())))
    assert len({tuple(y[0].tolist()) for y in first}) == 40
    assert not torch.equal(torch.cat(first), torch.cat(list(pool.map("drop", [x] * 40, seed=2))))


def test_requests_with_a_seed_share_no_batch() -> None:
    with Pool({"drop": Model(DROPPING, max_batch=32)}, workers=1) as pool:
        x = torch.ones(1, 50)
        futures = [pool.submit("drop", x, seed=5) for _ in range(60)]
        assert len({tuple(future.result(60)[0].tolist()) for future in futures}) == 1
        assert len({tuple(y[0].tolist()) for y in pool.map("drop", [x] * 60)}) == 60


def test_the_members_of_an_ensemble_draw_apart(pool: Pool) -> None:
    ensemble = pool.ensemble(["drop", "drop"], lambda outputs: outputs)
    one, two = ensemble.submit(torch.ones(1, 50), seed=3).result(60)
    again, _ = ensemble.submit(torch.ones(1, 50), seed=3).result(60)

    assert not torch.equal(one, two) and torch.equal(one, again)


@pytest.mark.live
def test_a_pool_with_a_seed_is_the_same_each_time() -> None:
    found = []
    for seed in (11, 11, 12):
        with Pool(models(1), workers=1, seed=seed) as pool:
            answers = [pool.submit(name).result(60) for name in ("m", "random1", "m")]
        found.append([(answer["built"], answer["drawn"]) for answer in answers])
    with Pool(models(1), workers=0, seed=11) as here:
        assert here.submit("m").result()["built"] == found[0][0][0]

    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("seed", ["7", 1.5, True, 2**64])
def test_what_is_no_seed_is_told(pool: Pool, seed: Any) -> None:
    with pytest.raises(UsageError, match="seed must be"):
        pool.submit("m", seed=seed)
    with pytest.raises(UsageError, match="seed must be"):
        Pool({"m": Model(DRAWING)}, seed=seed)


def test_seeds_made_of_seeds() -> None:
    assert derived(1, "worker", 2) == derived(1, "worker", 2)
    assert len({derived(seed, kind, i) for seed in range(10) for kind in ("worker", "model") for i in range(100)}) == 2000


def test_a_gpu_that_is_first_used_under_a_seed_goes_on_with_numbers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)  # which torch keeps until the GPU is first used
    monkeypatch.setattr(model_building, "_gpus", lambda: range(0))

    with seeded(3), seeded(5):
        monkeypatch.setattr(model_building, "_gpus", lambda: range(1))

    assert seeds[:3] == [3, 5, 3]
