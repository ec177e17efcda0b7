"""Memory that nobody uses: kept between tasks, given back by a worker that is idle and after a model has left."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402

from rankwise.pool import Model, Pool  # noqa: E402
from rankwise.pool.workers.fork_server import ENVIRONMENT  # noqa: E402
from rankwise.pool.workers.loading import KEPT_S, tensor_bytes  # noqa: E402

HERE = "tests.pool.models"
LARGE_MB = 200


def resident_mb(pool: Pool) -> float:
    """Of the only worker, what is its own."""
    (worker,) = pool.stats()["workers"]
    lines = Path(f"/proc/{worker['pid']}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1000


def faults(pool: Pool) -> int:
    (worker,) = pool.stats()["workers"]
    return int(Path(f"/proc/{worker['pid']}/stat").read_text().rsplit(")", 1)[1].split()[7])


def falls_below(limit_mb: float, pool: Pool, between: Callable[[], object]) -> bool:
    end = time.monotonic() + 60
    while resident_mb(pool) > limit_mb:
        if time.monotonic() > end:
            return False
        between()
        time.sleep(0.05)
    return True


@pytest.mark.live
def test_an_idle_worker_gives_back_what_its_tasks_took() -> None:
    with Pool({"wide": Model(f"{HERE}:widening")}, workers=1) as pool:
        small, large = np.ones(1, np.float32), np.ones(LARGE_MB * 250_000, np.float32)
        pool.submit("wide", small).result()
        before = resident_mb(pool)
        assert pool.submit("wide", large).result().item() == LARGE_MB * 500_000

        assert falls_below(before + LARGE_MB / 4, pool, lambda: None)
        assert pool.submit("wide", small).result().item() == 2


@pytest.mark.live
def test_a_worker_that_stays_busy_gives_back_what_a_model_took() -> None:
    models = {"large": Model(f"{HERE}:weighty", args=(LARGE_MB,)), "small": Model(f"{HERE}:echo")}
    with Pool(models, workers=1, idle_s=0.2) as pool:
        x = np.ones(1, np.float32)
        pool.submit("small", x).result()
        before = resident_mb(pool)
        pool.submit("large", x).result()
        assert resident_mb(pool) > before + LARGE_MB / 2

        assert falls_below(before + LARGE_MB / 4, pool, lambda: pool.submit("small", x).result())


def test_a_busy_worker_keeps_the_pages_of_its_activations() -> None:
    """What one forward frees, the next one uses; the kernel need not find and clear the pages again for each."""
    with Pool({"conv": Model(f"{HERE}:convolving")}, workers=1, threads=1) as pool:
        x = np.ones((16, 3, 64, 64), np.float32)  # 8 MB, then 4, inside the model
        for _ in range(5):
            pool.submit("conv", x).result()
        before = faults(pool)
        for _ in range(15):
            pool.submit("conv", x).result()

        assert (faults(pool) - before) / 15 < 300  # of 3,000 pages


def test_both_allocators_keep_memory_equally_long() -> None:
    assert int(ENVIRONMENT["MIMALLOC_PURGE_DELAY"]) == 1000 * KEPT_S


def holding(tensor: torch.Tensor) -> torch.nn.Module:
    model = torch.nn.Module()
    model.register_buffer("kept", tensor)
    return model


@pytest.mark.parametrize(
    ("make", "nbytes"),
    [
        (lambda: torch.eye(4).to_sparse(), 4 * 4 + 2 * 4 * 8),
        (lambda: torch.sparse_csr_tensor(torch.arange(5), torch.arange(4), torch.ones(4)), 4 * 4 + (4 + 5) * 8),
        (lambda: TwoTensor(torch.ones(8), torch.ones(8)), 2 * 8 * 4),  # as quantized weights of torchao are made
        (lambda: torch.ones(1).expand(100), 4),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_tensors_of_every_kind_have_a_size(make: Callable[[], torch.Tensor], nbytes: int) -> None:
    assert tensor_bytes(holding(make())) == nbytes


def test_a_lazy_model_is_made_by_its_first_request() -> None:
    with Pool({"lazy": Model(torch.nn.LazyLinear, args=(3,))}, workers=0) as pool:
        assert pool.submit("lazy", torch.ones(2, 5)).result().shape == (2, 3)
