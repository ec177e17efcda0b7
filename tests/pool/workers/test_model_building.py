"""Memory that a worker does not use is kept between tasks, and given back when it is idle or a model has left; what a model sets for its
whole process, it sets for itself only."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402

import rankwise  # noqa: E402
from rankwise.pool import Model, Pool  # noqa: E402
from rankwise.pool.workers.fork_server import ENVIRONMENT  # noqa: E402
from rankwise.pool.workers.model_building import KEPT_S, WithOwnDefaults, tensor_bytes  # noqa: E402
from tests.pool.models import tells_modes  # noqa: E402

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


def exported() -> torch.nn.Module:
    """Half of it is a program, which knows no `eval()`."""
    program = torch.export.export(torch.nn.Linear(5, 3).eval(), (torch.ones(2, 5),))
    return torch.nn.Sequential(torch.nn.Dropout(), program.module())


def test_the_module_of_an_exported_program_is_a_model_too() -> None:
    with Pool({"exported": Model(exported)}, workers=0) as pool:
        outputs = [pool.submit("exported", torch.ones(2, 5)).result() for _ in range(2)]

    assert outputs[0].shape == (2, 3) and outputs[0].equal(outputs[1])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("when", ["build", "forward"])
def test_the_default_dtype_of_one_model_is_not_that_of_others(workers: int, when: str) -> None:
    models = {"wide": Model(f"{HERE}:sets_default_dtype", args=(when,)), "plain": Model(f"{HERE}:makes_ones")}
    with Pool(models, workers=workers) as pool:
        seen = [pool.submit(name, torch.ones(1)).result(60).dtype for name in ("wide", "wide", "plain", "wide", "plain")]

    wide, plain = torch.float64, torch.float32
    assert seen == [wide, wide, plain, wide, plain]
    assert torch.get_default_dtype() is plain


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("when", ["build", "forward"])
def test_autocast_and_determinism_of_one_model_are_not_those_of_others(workers: int, when: str) -> None:
    models = {"coarse": Model(f"{HERE}:sets_modes", args=(when,)), "plain": Model(f"{HERE}:tells_modes")}
    with Pool(models, workers=workers) as pool:
        seen = [pool.submit(name, torch.ones(2)).result(60) for name in ("coarse", "coarse", "plain", "coarse", "plain")]

    coarse, plain = ("torch.bfloat16", True), ("torch.float32", False)
    assert seen == [coarse, coarse, plain, coarse, plain]
    assert tells_modes()(torch.ones(2)) == plain


@pytest.mark.parametrize("workers", [0, 1])
def test_the_precision_of_products_that_a_build_sets_is_not_that_of_others(workers: int) -> None:
    models = {name: Model(f"{HERE}:sets_precision", args=(name,)) for name in ("high", "medium")} | {"plain": f"{HERE}:tells_precision"}
    names = ["high", "plain", "medium", "high", "plain"]
    with Pool(models, workers=workers) as pool:
        assert [pool.submit(name, torch.ones(2)).result(60) for name in names] == ["high", "highest", "medium", "high", "highest"]
        try:
            torch.set_float32_matmul_precision("medium")  # by the script itself, after the pool was made
            pool.submit("high", torch.ones(2)).result(60)
            assert torch.get_float32_matmul_precision() == "medium"
        finally:
            torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("by_path", [True, False], ids=["path", "function"])
def test_what_a_module_sets_when_it_is_imported_is_for_all_its_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_path: bool
) -> None:
    text = "import torch\nwas = torch.get_default_dtype()\ntorch.set_default_dtype(torch.float64)\n"
    (tmp_path / "wide_at_import.py").write_text(text + "class Wide(torch.nn.Linear): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    wide = importlib.import_module("wide_at_import")
    torch.set_default_dtype(wide.was)
    build = "wide_at_import:Wide" if by_path else partial(wide.Wide)
    models = {name: Model(build, args=(1, 1)) for name in "ab"} | {"plain": Model(f"{HERE}:makes_ones")}
    with Pool(models, workers=1) as pool:
        seen = [pool.submit(name, torch.ones(1, 1, dtype=torch.float64)).result(60).dtype for name in ("a", "b", "a", "b")]
        assert pool.submit("plain", torch.ones(1)).result(60).dtype is torch.float32

    assert seen == [torch.float64] * 4


def test_predict_in_this_process_leaves_the_callers_defaults(tmp_path: Path) -> None:
    from tests.pool.models import sets_default_dtype

    np.save(tmp_path / "x.npy", np.ones((3, 2), np.float32))

    rankwise.predict(lambda: sets_default_dtype("build"), tmp_path / "x.npy", tmp_path / "out.npy", workers=0)

    assert np.load(tmp_path / "out.npy").dtype == np.float64
    assert torch.get_default_dtype() is torch.float32


def test_a_stream_of_a_model_that_sets_defaults_leaves_them_to_it() -> None:
    """Its requests travel together and run one after the other, and those of another model run in between."""
    models = {"wide": Model(f"{HERE}:sets_default_dtype", args=("forward",)), "plain": Model(f"{HERE}:makes_ones")}
    with Pool(models, workers=1) as pool:
        seen = [y.dtype for y in pool.stream([(name, torch.ones(1)) for _ in range(200) for name in ("wide", "plain")])]

    assert seen == [torch.float64, torch.float32] * 200


def _doubles(module: torch.nn.Module) -> None:
    module.register_forward_hook(lambda _, inputs, output: 2 * output)


def _compiles(module: torch.nn.Module) -> None:
    module._compiled_call_impl = lambda x: 2 * x


def _calls_in_its_own_way(module: torch.nn.Module) -> None:
    module._call_impl = lambda x: 2 * x


def _is_of_another_class(module: torch.nn.Module) -> None:
    module.__class__ = _CalledInItsOwnWay


def _has_another_forward(module: torch.nn.Module) -> None:
    module.forward = lambda x: 2 * x


class _CalledInItsOwnWay(torch.nn.Identity):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


@pytest.mark.parametrize("change", [_doubles, _compiles, _calls_in_its_own_way, None])
def test_calls_in_a_row_do_what_a_call_does(change: Callable[[torch.nn.Module], None] | None) -> None:
    module = torch.nn.Identity() if change is not None else _CalledInItsOwnWay()
    model = WithOwnDefaults(module)
    if change is not None:
        with model.several() as run:
            assert run(torch.ones(1)) == 1
        change(module)

    with model.several() as run:
        assert run(torch.ones(1)) == model(torch.ones(1)) == 2


@pytest.mark.parametrize("change", [_doubles, _is_of_another_class, _has_another_forward])
def test_calls_in_a_row_see_what_a_call_changes(change: Callable[[torch.nn.Module], None]) -> None:
    module = torch.nn.Identity()
    with WithOwnDefaults(module).several() as run:
        assert run(torch.ones(1)) == 1
        change(module)
        assert run(torch.ones(1)) == 2


def test_calls_in_a_row_see_the_hooks_of_all_modules() -> None:
    model = WithOwnDefaults(torch.nn.Identity())
    hook = torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, output: 2 * output)
    try:
        with model.several() as run:
            assert run(torch.ones(1)) == 2
    finally:
        hook.remove()


def test_calls_in_a_row_run_scripted_models() -> None:
    with WithOwnDefaults(torch.jit.script(torch.nn.Linear(2, 1))).several() as run:
        assert run(torch.ones(1, 2)).shape == (1, 1)
