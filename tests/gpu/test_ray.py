"""The pool and `predict` on a Ray cluster with a GPU: models run on it, others beside it, and errors stay with the input that made them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ray")

import rankwise  # noqa: E402
from rankwise.pool import Model, Pool, TaskHung  # noqa: E402
from tests.cluster.conftest import Nodes  # noqa: E402
from tests.gpu.pool_models import mlp  # noqa: E402
from tests.gpu.test_pool import HERE, has_gpu  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not has_gpu(), reason="no NVIDIA GPU here"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Ray leaves sockets and files to the garbage collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # the same, told by pytest
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    nodes = Nodes()
    try:
        nodes.add(num_cpus=4, num_gpus=1)
        yield nodes.address
    finally:
        left = nodes.close()
    assert not left, f"left behind by the cluster: {left}"


@pytest.mark.parametrize("workers", ["auto", 1])
def test_models_run_on_the_gpu_that_ray_gave(address: str, workers: int | str) -> None:
    models = {"mlp": Model(f"{HERE}:mlp", max_batch=64), "where": Model(f"{HERE}:where")}
    rows = torch.rand(200, 512)
    with torch.inference_mode():
        expected = mlp().eval()(rows)
    with Pool(models, engine="ray", address=address, workers=workers) as pool:
        facts = pool.submit("where", torch.ones(1)).result(120)
        assert (facts["device"], facts["count"]) == ("cuda:0", 1)
        found = list(pool.stream(("mlp", rows[i : i + 1]) for i in range(200)))
        assert all(y.device.type == "cpu" for y in found)
        torch.testing.assert_close(torch.cat(found), expected, rtol=1e-2, atol=1e-2)
        assert pool.stats()["models"]["mlp"]["failed"] == 0


def test_a_model_on_the_cpu_runs_beside_one_on_the_gpu(address: str) -> None:
    models = {"gpu": Model(f"{HERE}:where", device="cuda"), "cpu": Model(f"{HERE}:where", device="cpu")}
    with Pool(models, engine="ray", address=address, workers=2) as pool:
        assert {name: pool.submit(name, torch.ones(1)).result(120)["device"] for name in models} == {"gpu": "cuda:0", "cpu": "cpu"}


def test_a_device_side_assert_costs_only_the_input_that_made_it(address: str) -> None:
    models = {"looking": Model(f"{HERE}:looking", max_batch=16), "mlp": Model(f"{HERE}:mlp")}
    with Pool(models, engine="ray", address=address) as pool:
        pool.submit("looking", torch.ones(1, 1)).result(120)
        futures = [pool.submit("looking", torch.full((1, 1), 99.0 if i == 30 else float(i % 10))) for i in range(100)]
        errors = [future.exception(240) for future in futures]
        assert [i for i, error in enumerate(errors) if error is not None] == [30]
        assert all(future.result().item() == 2.0 * (i % 10) for i, future in enumerate(futures) if i != 30)
        assert pool.submit("mlp", torch.rand(1, 512)).result(120).shape == (1, 512)


def test_a_task_that_hangs_on_the_gpu_ends_with_its_stack(address: str) -> None:
    with Pool({"hanging": Model(f"{HERE}:hanging", limit_s=5.0)}, engine="ray", address=address) as pool:
        pool.submit("hanging", "not at all", torch.ones(2)).result(120)
        error = pool.submit("hanging", "waits", torch.ones(2)).exception(240)
        assert isinstance(error, TaskHung) and "pool_models.py" in error.finding.why
        assert pool.submit("hanging", "not at all", torch.ones(2)).result(240).tolist() == [2.0, 2.0]


def test_out_of_memory_halves_the_batch_and_goes_on(address: str) -> None:
    x = torch.arange(64.0).view(64, 1)
    with Pool({"hungry": Model(f"{HERE}:hungry", max_batch=64)}, engine="ray", address=address) as pool:
        assert pool.submit("hungry", x).result(240).equal(x + 1)


def test_predict_gives_what_one_process_gives(address: str, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((3000, 512), dtype=np.float32)
    np.save(tmp_path / "x.npy", rows)
    rankwise.predict(f"{HERE}:mlp", str(tmp_path / "x.npy"), tmp_path / "y.npy", engine="ray", address=address, batch=256)
    with torch.inference_mode():
        expected = mlp().eval()(torch.from_numpy(rows))
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "y.npy")), expected, rtol=1e-2, atol=1e-2)
