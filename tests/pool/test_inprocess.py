"""`workers=0` is for debugging what workers do, so it has to do the same."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rankwise.pool import DeadlineExceeded, Model, Pool, PoolClosed  # noqa: E402
from tests.pool.models import Pair  # noqa: E402

HERE = "tests.pool.models"
ARRAY, TENSOR = np.arange(8, dtype=np.float32).reshape(2, 4), torch.arange(8.0).reshape(2, 4)


@pytest.fixture(scope="module")
def pools() -> Iterator[tuple[Pool, Pool]]:
    models = {name: Model(f"{HERE}:{name}") for name in ("asked", "echo", "energy", "in_place")}
    with Pool(models, workers=1) as there, Pool(models, workers=0) as here:
        yield there, here


def told(value: Any) -> Any:
    """A value with all its types, to be compared."""
    if isinstance(value, dict):
        return type(value).__name__, {key: told(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [told(item) for item in value]
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        facts = (value.requires_grad, value.is_inference(), value.is_contiguous())
        return type(value).__name__, str(value.dtype), facts, value.tolist()
    if isinstance(value, np.ndarray):
        return type(value).__name__, str(value.dtype), value.flags.writeable, value.tolist()
    if isinstance(value, BaseException):
        return type(value).__name__, str(value)
    return type(value).__name__, str(value)


@pytest.mark.parametrize(
    ("wish", "inputs"),
    [
        ("mixed", (ARRAY,)),
        ("mixed", (TENSOR,)),
        ("kinds", (ARRAY, np.float64(2), [ARRAY], {"k": ARRAY}, np.array(["x"]), 3, "x")),
        ("kinds", (TENSOR, np.datetime64("2026-01-01"), None)),
        ("echo", ({"k": ARRAY},)),
        ("echo", ([ARRAY, TENSOR],)),
        ("echo", (np.float32(3),)),
        ("echo", (ARRAY[::-1],)),
        ("echo", (np.broadcast_to(ARRAY[0], (2, 4)),)),
        ("echo", (np.array(["x"]),)),
        ("echo", (np.array(3.0),)),
        ("echo", (np.zeros((0, 3)),)),
        ("echo", (TENSOR.clone().requires_grad_(),)),
        ("echo", (TENSOR.to(torch.complex64).conj(),)),
        ("echo", (TENSOR.to(torch.bfloat16),)),
        ("echo", (OrderedDict(a=ARRAY, b=1),)),
        ("echo", (Pair(TENSOR, "x"),)),
        ("echo", ({(1, 2): ARRAY},)),
        ("add", (ARRAY, TENSOR)),
        ("add", (ARRAY, np.float64(2))),
        ("add", (ARRAY, 2.0)),
        ("bfloat16", (ARRAY,)),
        ("bfloat16", (TENSOR,)),
        ("pair", (ARRAY,)),
        ("pair", (TENSOR,)),
        ("mean", (ARRAY,)),
        ("mean", (TENSOR,)),
        ("transposed", (ARRAY,)),
        ("transposed", (TENSOR,)),
        ("in_place", (TENSOR,)),
        ("in_place", (ARRAY,)),
        ("part", (TENSOR,)),
        ("numpy", (TENSOR,)),
        ("numpy", (ARRAY,)),
        ("sparse", (TENSOR,)),
        ("generator", (TENSOR,)),
        ("stop", (TENSOR,)),
        ("leave", (TENSOR,)),
        ("raise", (TENSOR,)),
        ("add", (TENSOR, torch.ones(3))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_come_back_as_from_a_worker(pools: tuple[Pool, Pool], wish: str, inputs: tuple[Any, ...]) -> None:
    there, here = [pool.submit("asked", wish, *inputs) for pool in pools]
    error = there.exception(60)

    assert told(here.exception()) == told(error)
    assert error is not None or told(here.result()) == told(there.result())


@pytest.mark.parametrize("model", ["echo", "energy", "in_place"])
@pytest.mark.parametrize(
    "x",
    [
        TENSOR,
        TENSOR.t(),
        TENSOR[:, 1],
        TENSOR[0].expand(3, 4),
        TENSOR.to(torch.complex64).conj(),
        TENSOR.to(torch.bfloat16),
        TENSOR.clone().requires_grad_(),
        torch.nn.Parameter(TENSOR.clone()),
        torch.zeros(0, 3),
        torch.tensor(3.0),
        ARRAY,
    ],
    ids=lambda x: f"{type(x).__name__}{list(x.shape)}",
)
def test_one_array_comes_back_as_from_a_worker(pools: tuple[Pool, Pool], model: str, x: Any) -> None:
    there, here = [pool.submit(model, x).result(60) for pool in pools]
    assert told(here) == told(there)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_callers_input_stays_as_it_is(workers: int) -> None:
    with Pool({"in_place": Model(f"{HERE}:in_place")}, workers=workers) as pool:
        for value in (torch.zeros(4), np.zeros(4, np.float32), torch.zeros(4, 3).t()):
            assert (pool.submit("in_place", value).result(60) == 1).all() and (value == 0).all()


def test_results_are_nobody_elses() -> None:
    """Not the model's own tensors, either."""
    with Pool({"linear": Model(f"{HERE}:linear")}, workers=0) as pool:
        first = pool.submit("linear", torch.ones(1, 10)).result()
        kept = first.clone()
        first.add_(1)
        assert pool.submit("linear", torch.ones(1, 10)).result().equal(kept)


@pytest.mark.parametrize("deadline_s", [0, -1.0])
def test_a_task_past_its_deadline_never_starts(pools: tuple[Pool, Pool], deadline_s: float) -> None:
    for pool in pools:
        before = pool.stats()["models"]["asked"]["expired"]
        error = pool.submit("asked", "raise", deadline_s=deadline_s).exception(60)
        assert isinstance(error, DeadlineExceeded) and "had not started" in str(error)
        assert pool.stats()["models"]["asked"]["expired"] == before + 1


@pytest.mark.parametrize("workers", [0, 1])
def test_a_closed_pool_lends_no_memory(workers: int) -> None:
    pool = Pool({"asked": Model(f"{HERE}:asked")}, workers=workers)
    pool.close()
    with pytest.raises(PoolClosed):
        pool.empty(3)


def test_the_numbers_have_the_same_names(pools: tuple[Pool, Pool]) -> None:
    there, here = [pool.stats() for pool in pools]
    assert here.keys() == there.keys() and here["lanes"].keys() == there["lanes"].keys()
    assert here["models"]["echo"].keys() == there["models"]["echo"].keys()


def test_a_build_is_found_where_workers_find_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are not started as `python -m`, so the folder they are started in is not among those that Python looks in."""
    (tmp_path / "only_in_this_folder.py").write_text("def build():\n    return lambda x: x + 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    with Pool({"m": Model("only_in_this_folder:build")}, workers=0) as pool:
        assert pool.submit("m", 1).result() == 2
    assert sys.path[-1] == str(tmp_path)
    monkeypatch.delitem(sys.modules, "only_in_this_folder")
