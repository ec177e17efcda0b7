"""The pool on a real GPU: several models at once, eviction by a budget of GPU memory, batching, recovery from out of memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from rankwise.errors import UsageError  # noqa: E402
from rankwise.pool import Model, Pool, TaskHung  # noqa: E402


def has_gpu() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidia0").exists()


pytestmark = [pytest.mark.skipif(not has_gpu(), reason="no NVIDIA GPU here"), pytest.mark.timeout(300)]
HERE = "tests.gpu.pool_models"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    models = {
        "mlp": Model(f"{HERE}:mlp", max_batch=64),
        "cnn": Model(f"{HERE}:cnn"),
        "where": Model(f"{HERE}:where"),
        "found": Model(f"{HERE}:Finder"),
        "hungry": Model(f"{HERE}:hungry", max_batch=64),
    }
    with Pool(models, workers=2) as pool:
        yield pool


def test_workers_see_their_gpu_only_and_models_run_on_it(pool: Pool) -> None:
    facts = pool.submit("where", torch.ones(1)).result(120)

    assert facts["device"] == "cuda:0" and facts["visible"] == pool.plan.seats[0].device.split(":")[1] and facts["count"] == 1
    assert "cuda" in pool.plan.why


def test_several_models_at_once_give_what_they_give_alone(pool: Pool) -> None:
    from tests.gpu.pool_models import cnn, mlp

    with torch.inference_mode():
        alone = {"mlp": mlp().eval(), "cnn": cnn().eval()}
        inputs = {"mlp": torch.rand(3, 512), "cnn": torch.rand(2, 3, 64, 64)}
        expected = {name: model(inputs[name]) for name, model in alone.items()}
    futures = [(name, pool.submit(name, inputs[name])) for _ in range(30) for name in alone]

    for name, future in futures:
        y = future.result(120)
        assert y.device.type == "cpu"
        torch.testing.assert_close(y, expected[name], rtol=1e-2, atol=1e-2)


def test_tensors_in_any_container_come_back_from_the_gpu(pool: Pool) -> None:
    found = pool.submit("found", {"a": torch.ones(70_000)}).result(120)

    assert type(found).__name__ == "Found" and found.kind == "cuda"
    assert found.parts["doubled"].device.type == "cpu" and bool((found.parts["doubled"] == 2).all())


def test_large_inputs_pass_through_pinned_memory(pool: Pool) -> None:
    x = torch.rand(4096, 512)
    y = pool.submit("mlp", x).result(120)
    assert y.shape == (4096, 512) and bool(y.isfinite().all())


def test_rows_are_batched(pool: Pool) -> None:
    futures = [pool.submit("mlp", torch.rand(1, 512)) for _ in range(500)]
    for future in futures:
        future.result(120)
    assert pool.stats()["models"]["mlp"]["mean_batch"] > 2


def test_out_of_memory_halves_the_batch_and_goes_on(pool: Pool) -> None:
    x = torch.arange(64.0).view(64, 1)
    assert pool.submit("hungry", x).result(240).equal(x + 1)
    assert pool.stats()["models"]["hungry"]["max_batch"] < 64


def test_models_are_evicted_by_the_budget_of_the_gpu() -> None:
    sizes = {"a": 400, "b": 400, "c": 400}
    models = {name: Model(f"{HERE}:weighty", args=(megabytes,)) for name, megabytes in sizes.items()}
    with Pool(models, workers=1, memory="1GB") as pool:
        for name in ("a", "b", "c", "a", "c", "b"):
            assert pool.submit(name, torch.ones(2)).result(120).tolist() == [1.0, 1.0]
        stats = pool.stats()
        assert sum(model["evictions"] for model in stats["models"].values()) >= 2
        assert sum(worker["memory_bytes"] for worker in stats["workers"]) <= 1e9


def test_a_model_on_the_cpu_runs_beside_one_on_the_card_and_a_gpu_that_is_not_there_is_refused() -> None:
    models = {"gpu": Model(f"{HERE}:where"), "first": Model(f"{HERE}:where", device="cuda:0"), "cpu": Model(f"{HERE}:where", device="cpu")}
    with Pool(models, workers=1) as pool:
        devices = {name: pool.submit(name, torch.ones(1)).result(120)["device"] for name in models}
    assert devices == {"gpu": "cuda:0", "first": "cuda:0", "cpu": "cpu"}
    with pytest.raises(UsageError, match="wants cuda:97"):
        Pool({"far": Model(f"{HERE}:where", device="cuda:97")})


@pytest.mark.parametrize("max_batch", [1, 16])
def test_a_device_side_assert_costs_only_the_input_that_made_it(max_batch: int) -> None:
    models = {"looking": Model(f"{HERE}:looking", max_batch=max_batch), "mlp": Model(f"{HERE}:mlp")}
    with Pool(models, workers=2) as pool:
        pool.submit("looking", torch.ones(1, 1)).result(120)
        futures = [pool.submit("looking", torch.full((1, 1), 99.0 if i == 30 else float(i % 10))) for i in range(100)]
        beside = [pool.submit("mlp", torch.rand(1, 512)) for _ in range(50)]
        error = futures[30].exception(240)

        assert isinstance(error, RuntimeError) and "device-side assert" in str(error), error
        assert [future.result(240).item() for i, future in enumerate(futures) if i != 30] == [2.0 * (i % 10) for i in range(100) if i != 30]
        assert all(future.result(240).shape == (1, 512) for future in beside)
        assert all(pool.submit("looking", torch.ones(1, 1)).result(120).item() == 2.0 for _ in range(20))
        assert 1 <= pool.stats()["restarts"] <= 2  # the worker of its batch, and the one in which it ran alone


@pytest.mark.parametrize("how", ["python", "waits", "leaves"])
def test_a_task_that_hangs_on_the_card_ends_with_its_stack(how: str) -> None:
    with Pool({"hanging": Model(f"{HERE}:hanging", limit_s=5.0)}, workers=1) as pool:
        pool.submit("hanging", "not at all", torch.ones(2)).result(120)
        error = pool.submit("hanging", how, torch.ones(2)).exception(240)

        assert isinstance(error, TaskHung)
        assert "could not be read" not in error.finding.why, error.finding.why
        assert ("pool_models.py" if how != "leaves" else "the GPU was not done") in error.finding.why, error.finding.why
        assert pool.submit("hanging", "not at all", torch.ones(2)).result(240).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("max_batch", [1, 16])
def test_memory_that_a_model_keeps_is_given_back_when_it_runs_out(max_batch: int) -> None:
    models = {"keeping": Model(f"{HERE}:Keeping", max_batch=max_batch), "mlp": Model(f"{HERE}:mlp")}
    calls = torch.cuda.mem_get_info()[1] // (4 << 30) + 5
    with Pool(models, workers=1) as pool:
        pool.submit("mlp", torch.rand(1, 512)).result(120)
        errors = [pool.submit("keeping", torch.ones(1, 1)).exception(240) for _ in range(calls)]

        assert sum(error is not None for error in errors) <= 1 and all("out of memory" in str(error) for error in errors if error)
        assert pool.stats()["restarts"] == 1
        assert pool.submit("mlp", torch.rand(1, 512)).result(240).shape == (1, 512)


def test_sparse_tensors_go_to_the_gpu_and_come_back() -> None:
    x = torch.eye(300)
    with Pool({"sparse": Model(f"{HERE}:ToSparse")}, workers=1) as pool:
        for given, factor in ((x, 1), (x.to_sparse(), 2)):
            coo, csr = pool.submit("sparse", given).result(120)
            assert coo.layout is torch.sparse_coo and coo.device.type == "cpu" and torch.equal(coo.to_dense(), x * factor)
            assert csr.layout is torch.sparse_csr and csr.device.type == "cpu" and torch.equal(csr.to_dense(), x)
