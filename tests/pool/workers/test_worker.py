"""A model that forks and lets the child come back: the child answers nothing, and takes nothing away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.families import mostly_live

torch = pytest.importorskip("torch")

from rankwise.pool import Model, Pool  # noqa: E402

WAYS = ["beside", "returns", "raises", "leaves", "in C"]
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    models = {
        f"{way}, {rows}": Model("tests.pool.models:forking", args=(way,), max_batch=rows, limit_s=20) for way in WAYS for rows in (1, 4)
    }
    models |= {f"{way}, built": Model("tests.pool.models:forking", args=(way, True), limit_s=20) for way in WAYS}
    with Pool(models, workers=1) as pool:
        yield pool


@pytest.mark.parametrize("how", mostly_live(["1", "4", "built"]))
@pytest.mark.parametrize("way", WAYS)
def test_each_task_is_answered_once_and_none_is_lost(pool: Pool, way: str, how: str) -> None:
    model = f"{way}, {how}"
    for i in range(5):  # one by one, by the short way
        assert pool.submit(model, torch.full((1, 2), float(i))).result(15).tolist() == [[2.0 * i, 2.0 * i]]
    futures = [pool.submit(model, torch.full((1, 2), float(i))) for i in range(40)]
    assert [future.result(15)[0, 0].item() for future in futures] == [2.0 * i for i in range(40)]
    assert [y[0, 0].item() for y in pool.map(model, [torch.full((1, 2), float(i)) for i in range(40)])] == [2.0 * i for i in range(40)]
    numbers = pool.stats()["models"][model]

    assert numbers["failed"] == numbers["rerun"] == 0 and pool.stats()["restarts"] == 0
