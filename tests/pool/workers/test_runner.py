"""A GPU on which nothing runs any more after an error: the worker is replaced at once, the input blamed, and nobody else notices."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rankwise.pool import Model, ModelUnavailable, Pool, TaskHung  # noqa: E402
from rankwise.pool.workers import runner  # noqa: E402
from rankwise.pool.workers.runner import GpuUnusable, check_gpu_usable  # noqa: E402
from tests.pool.models import HANG, RAISE  # noqa: E402

BREAKING_GPU = "tests.pool.models:breaking_gpu"
KINDS = {"class": torch.AcceleratorError, "number": torch.AcceleratorError, "hidden": ValueError}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    models = {f"{how}, {rows}": Model(BREAKING_GPU, args=(how,), max_batch=rows, max_delay_ms=10) for how in KINDS for rows in (1, 8)}
    models |= {"beside": Model("tests.pool.models:healthy_beside"), "build": Model(BREAKING_GPU, args=("build",))}
    with Pool(models, workers=2) as pool:
        yield pool


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("how", KINDS)
def test_only_the_input_that_did_it_fails(pool: Pool, how: str, rows: int) -> None:
    model = f"{how}, {rows}"
    pool.submit(model, torch.ones(1, 2)).result(60)
    futures = []
    for i in range(60):
        futures.append(pool.submit(model, torch.full((1, 2), RAISE if i == 20 else float(i))))
        futures.append(pool.submit("beside", torch.full((1, 2), float(i))))
    error = futures[40].exception(60)

    assert type(error) is KINDS[how]
    shown = "".join(traceback.format_exception(error))
    assert "its worker was replaced" in shown and "models.py" in shown
    for place, future in enumerate(futures):
        if place != 40:
            assert future.result(60)[0, 0].item() == 2.0 * (place // 2)


def test_a_stream_loses_only_the_input_that_did_it(pool: Pool) -> None:
    xs = [torch.full((1, 2), RAISE if i == 100 else float(i)) for i in range(200)]
    results = pool.map("class, 8", xs)
    found: list[Any] = []
    while len(found) < 200:
        try:
            found.append(next(results)[0, 0].item())
        except torch.AcceleratorError:
            found.append("failed")
            if len(found) < 200:  # a generator that raised is over, so the rest is asked for anew
                results = pool.map("class, 8", xs[len(found) :])

    assert found == ["failed" if i == 100 else 2.0 * i for i in range(200)]


def test_a_build_that_does_it_leaves_a_pool_that_works(pool: Pool) -> None:
    assert isinstance(pool.submit("build", torch.ones(1)).exception(60), ModelUnavailable)
    futures = [pool.submit("beside", torch.full((1, 2), float(i))) for i in range(50)]
    assert [future.result(60)[0, 0].item() for future in futures] == [2.0 * i for i in range(50)]


def test_what_passes_is_no_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (
        ValueError("device-side assert"),
        RuntimeError("CUDA error: invalid configuration argument"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        KeyboardInterrupt(),
    ):
        check_gpu_usable(error)
    monkeypatch.setattr(runner, "_gpu_answers", lambda: False)  # whatever the model has made of the GPU's error
    with pytest.raises(GpuUnusable):
        check_gpu_usable(ValueError("no luck"))


def test_a_task_that_hangs_has_its_stack() -> None:
    with Pool({"moody": Model("tests.pool.models:moody", limit_s=0.5)}, workers=1) as pool:
        error = pool.submit("moody", torch.tensor([HANG])).exception(60)

    assert isinstance(error, TaskHung)
    assert "models.py" in error.finding.why and "forward" in error.finding.why and "rankwise/pool/workers/" not in error.finding.why


def test_a_process_whose_models_keep_the_gpus_memory_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    ran_out = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10, 1000))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 900)
    with pytest.raises(GpuUnusable):
        runner.Runner(None, lambda: 600).check_gpu(ran_out)
    runner.Runner(None, lambda: 850).check_gpu(ran_out)  # the models themselves are that large
    runner.Runner(None).check_gpu(ran_out)  # in the caller's own process


SHORT_OF_ADDRESSES = """
import resource
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), resource.RLIM_INFINITY))
try:
    import {module}
except ImportError as error:
    found = error
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
from rankwise.pool.workers.runner import ran_out
print(ran_out(found), found)
"""


@pytest.mark.parametrize(("module", "is_passing"), [("_decimal", "True"), ("no_such_module", "False")])
def test_a_library_that_finds_no_memory_may_find_it_in_another_process(module: str, is_passing: str) -> None:
    ran = subprocess.run([sys.executable, "-c", SHORT_OF_ADDRESSES.format(module=module)], capture_output=True, text=True, timeout=60)

    assert ran.stdout.split(" ")[0] == is_passing, ran.stdout + ran.stderr
