"""Models that are loaded, and leave, because somebody says so."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rankwise.errors import RankwiseError  # noqa: E402
from rankwise.pool import Model, Pool  # noqa: E402
from tests.pool.models import EXIT  # noqa: E402

HERE = "tests.pool.models"
LONG_S = 60


@pytest.fixture(scope="module", params=[2, 0], ids=["workers", "in this process"])
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    weights = tmp_path_factory.mktemp("weights") / "w.pt"
    torch.save(torch.nn.Linear(10, 4).state_dict(), weights)
    models = {
        "bare": Model("torch.nn:Linear", weights=weights, args=(10, 4)),
        "broken": Model("tests.pool.no_such_module:build"),
        "moody": Model(f"{HERE}:moody"),
    }
    with Pool(models, workers=request.param) as pool:
        pool.weights = weights  # type: ignore[attr-defined]
        yield pool


def replicas(pool: Pool, model: str) -> int:
    return int(pool.stats()["models"][model]["replicas"])


def test_a_model_is_loaded_before_anybody_asks_it_anything(pool: Pool) -> None:
    pool.load("moody").result(LONG_S)

    assert replicas(pool, "moody") == 1 and pool.stats()["models"]["moody"]["completed"] == 0
    pool.load("moody").result(LONG_S)  # it is there already
    assert pool.stats()["models"]["moody"]["loads"] == 1


def test_a_model_that_cannot_be_built_says_so_each_time(pool: Pool) -> None:
    for _ in range(2):
        with pytest.raises(RankwiseError) as caught:
            pool.load("broken").result(LONG_S)
        assert caught.value.finding.code == "RW807"


def test_unload_and_load_read_the_weights_anew_and_lose_no_task(pool: Pool) -> None:
    weights: Path = pool.weights  # type: ignore[attr-defined]
    x = np.ones((1, 10), np.float32)
    before = pool.submit("bare", x).result(LONG_S)
    torch.save({"weight": torch.zeros(4, 10), "bias": torch.full((4,), 7.0)}, weights)
    asked = [pool.submit("bare", x) for _ in range(50)]

    pool.unload("bare")
    asked += [pool.submit("bare", x) for _ in range(50)]
    pool.load("bare").result(LONG_S)

    assert np.all(pool.submit("bare", x).result(LONG_S) == 7.0)
    for future in asked:
        assert np.array_equal(y := future.result(LONG_S), before) or np.all(y == 7.0)


def test_a_model_that_left_is_gone_until_it_is_asked(pool: Pool) -> None:
    pool.load("moody").result(LONG_S)
    pool.unload("moody")

    assert replicas(pool, "moody") == 0
    assert pool.submit("moody", np.ones(1, np.float32)).result(LONG_S)[0] == 2.0


def test_a_load_goes_on_when_its_worker_dies() -> None:
    with Pool({"moody": Model(f"{HERE}:moody"), "linear": Model(f"{HERE}:linear", replicas=2)}, workers=2) as pool:
        killer = pool.submit("moody", np.full(1, EXIT, np.float32))
        loaded = pool.load("linear")

        loaded.result(LONG_S)

        assert replicas(pool, "linear") == 2
        with pytest.raises(RankwiseError):
            killer.result(LONG_S)


def test_a_load_ends_when_the_pool_is_closed() -> None:
    pool = Pool({"slow": Model(f"{HERE}:moody")}, workers=1)
    loaded = pool.load("slow")
    pool.close(cancel=True)

    assert loaded.done()
    with pytest.raises(RankwiseError):
        pool.load("slow")


def test_bfloat16_of_numpy_arrives_as_torchs(pool: Pool) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    given = np.arange(40_000, dtype=np.float32).astype(ml_dtypes.bfloat16)
    for x in (given[:8], given, given[::2]):
        assert np.array_equal(pool.submit("moody", x).result(LONG_S), 2 * x.astype(np.float32))


def test_no_more_replicas_are_waited_for_than_there_are_workers() -> None:
    with Pool({"moody": Model("tests.pool.models:moody", replicas=5)}, workers=2) as pool:
        pool.load("moody").result(LONG_S)
        assert pool.stats()["models"]["moody"]["replicas"] == 2


def test_a_load_and_a_reload_come_to_pass_while_tasks_keep_all_workers_busy() -> None:
    models = {name: Model(f"{HERE}:moody") for name in ("busy", "other")}
    with Pool(models, workers=1) as pool:
        pool.load("busy").result(LONG_S)
        results = pool.map("busy", itertools.repeat(np.ones(4, np.float32)))
        next(results)
        for change in (lambda: pool.load("other"), lambda: pool.reload("busy")):
            future, until = change(), time.monotonic() + LONG_S
            while not future.done() and time.monotonic() < until:
                next(results)
            assert future.done() and future.exception() is None
        results.close()


@pytest.mark.parametrize("how", ["raises", "exits"])
def test_a_replica_that_cannot_be_built_leaves_the_others_at_work(tmp_path: Path, how: str) -> None:
    with Pool({"moody": Model(f"{HERE}:built_once", args=(str(tmp_path / "built"), how), replicas=2)}, workers=2) as pool:
        with pytest.raises(RankwiseError) as caught:
            pool.load("moody").result(LONG_S)

        assert caught.value.finding.code == "RW807"
        assert pool.submit("moody", torch.ones(2)).result(LONG_S).tolist() == [2.0, 2.0]
        assert pool.stats()["models"]["moody"]["state"] == "ok" and replicas(pool, "moody") == 1
