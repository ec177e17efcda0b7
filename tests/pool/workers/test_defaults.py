"""What a model sets for its whole process, it sets for itself only."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import rankwise  # noqa: E402
from rankwise.pool import Model, Pool  # noqa: E402
from rankwise.pool.workers.defaults import WithOwnDefaults  # noqa: E402
from tests.pool.models import tells_modes  # noqa: E402

HERE = "tests.pool.models"


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
