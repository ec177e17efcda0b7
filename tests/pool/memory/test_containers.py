"""What a second look at the pool found: inputs that were written to, containers of people's own, pools that nobody has any more."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from rankwise.errors import UsageError
from rankwise.pool import Model, Pool, PoolFull
from tests.families import mostly_live

HERE = "tests.pool.memory.test_containers"


class Pair(NamedTuple):
    a: Any
    b: Any


class Attributes(dict):  # type: ignore[type-arg]
    """Its items are its attributes, as many people write it."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.__dict__ = self


class Frozen(dict):  # type: ignore[type-arg]
    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("frozen")

    def __reduce__(self) -> tuple[Any, ...]:
        return Frozen, (dict(self),)


def writes_and_runs_out(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    if len(x) > 2:
        raise MemoryError
    return x * 1


def wants_two(x: torch.Tensor) -> torch.Tensor:
    if len(x) < 2:
        raise ValueError("more than one row is wanted")
    return x * 2


class Counting(torch.nn.Module):
    """Returns the tensor it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = torch.zeros(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sum += x[0]
        return self.sum


def oom() -> Any:
    return writes_and_runs_out


def two() -> Any:
    return wants_two


def pairs() -> Any:
    return lambda x: Pair(x, OrderedDict(twice=2 * x))


def attributes() -> Any:
    return lambda x: Attributes(y=2 * x)


def frozen() -> Any:
    return lambda x: Frozen(y=2 * x)


def both() -> Any:
    return lambda x, more: x + (more["m"] if isinstance(more, dict) else more.m)


def lengths() -> Any:
    return lambda x, words: torch.stack([row + len(word) for row, word in zip(x, words)])


def local_class() -> Any:
    class Local(NamedTuple):
        x: torch.Tensor

    return Local


def echo() -> Any:
    return lambda x: x


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    names = ["oom", "two", "pairs", "attributes", "frozen", "both", "lengths", "local_class", "echo"]
    with Pool({name: Model(f"{HERE}:{name}", max_batch=8) for name in names}, workers=1, lane_bytes="40MB") as pool:
        yield pool


@pytest.mark.parametrize("width", mostly_live([2, 5000]))
def test_a_request_that_is_halved_finds_its_input_as_it_was(width: int) -> None:
    with Pool({"oom": Model(f"{HERE}:oom", max_batch=8)}, workers=1) as pool:
        x = torch.arange(4.0 * width).reshape(4, width)
        assert torch.equal(pool.submit("oom", x).result(60), x + 1)


def test_a_model_that_takes_no_single_row_still_takes_several(pool: Pool) -> None:
    assert torch.equal(pool.submit("two", torch.ones(4, 2)).result(60), 2 * torch.ones(4, 2))


@pytest.mark.parametrize("name", ["attributes", "frozen"])
def test_nobody_gets_the_rows_of_others_in_containers_of_peoples_own(pool: Pool, name: str) -> None:
    xs = [torch.full((1, 2), float(i)) for i in range(20)]
    found = [pool.submit(name, x) for x in xs]

    for x, future in zip(xs, found):
        result = future.result(60)
        assert torch.equal(result["y"], 2 * x) and torch.equal(getattr(result, "y", result["y"]), 2 * x)
    assert pool.submit(name, torch.ones(20, 2)).result(60)["y"].shape == (20, 2)


@pytest.mark.parametrize("held", [lambda x: OrderedDict(m=x), lambda x: SimpleNamespace(m=x), lambda x: SimpleNamespace(m=x.numpy())])
def test_inputs_in_containers_that_are_not_cut_are_not_cut_beside_others(pool: Pool, held: Callable[[torch.Tensor], Any]) -> None:
    x = torch.rand(20, 2)
    assert torch.equal(pool.submit("both", x, held(x)).result(60), 2 * x)


def test_what_has_something_for_each_row_is_not_cut_beside_others(pool: Pool) -> None:
    """The checks of rows see nothing as long as all rows have the same."""
    x, words = torch.rand(20, 2), ["a" * i for i in range(20)]
    for kind in (np.array, list, tuple, lambda words: np.array(words, object)):
        for _ in range(5):
            assert torch.equal(pool.submit("lengths", x, kind(["aa"] * 20)).result(60), x + 2)
        assert torch.equal(pool.submit("lengths", x, kind(words)).result(60), x + torch.arange(20)[:, None])


def test_arrays_in_any_container_give_arrays(pool: Pool) -> None:
    x = np.ones((1, 2), np.float32)
    assert type(pool.submit("both", x, OrderedDict(m=x)).result(60)) is np.ndarray


@pytest.mark.parametrize("combine", ["mean", "vote"])
def test_ensembles_of_models_that_return_containers(pool: Pool, combine: str) -> None:
    result = pool.ensemble(["pairs", "pairs"], combine).submit(torch.tensor([[0.25, 0.75]])).result(60)

    assert type(result) is Pair and type(result.b) is OrderedDict


def test_a_class_that_cannot_travel_is_told_as_such(pool: Pool) -> None:
    class Mine(NamedTuple):
        x: torch.Tensor

    assert "cannot be sent" in str(pool.submit("local_class", torch.ones(1, 2)).exception(60))
    with pytest.raises(UsageError, match="cannot be sent"):
        pool.submit("echo", Mine(torch.ones(1, 2)))


@pytest.mark.parametrize("inference", [False, True])
def test_in_this_process_nobody_gets_what_the_model_keeps(inference: bool) -> None:
    with Pool({"m": Model(Counting)}, workers=0) as pool, torch.inference_mode(inference):
        first = pool.submit("m", torch.tensor([5.0])).result()
        second = pool.submit("m", torch.tensor([1.0])).result()
    assert (first.item(), second.item()) == (5.0, 6.0)


def uses(pool: Pool) -> dict[str, Any]:
    return {"ensemble": pool.ensemble(["echo", "echo"]), "split": pool.split({"echo": 1}), "router": pool.router(lambda x: "echo")}


@pytest.mark.parametrize("use", ["ensemble", "split", "router"])
def test_mapping_a_use_waits_for_room_only_where_somebody_can_make_it(pool: Pool, use: str) -> None:
    held = pool.empty(6_000_000, "float32")
    with pytest.raises(PoolFull):
        next(uses(pool)[use].map([torch.ones(1, 5_000_000)]))
    assert len(held) == 6_000_000


@pytest.mark.parametrize("use", ["ensemble", "split", "router"])
def test_an_error_of_the_source_comes_after_the_results_before_it(pool: Pool, use: str) -> None:
    def source() -> Iterator[torch.Tensor]:
        yield from (torch.ones(1, 2), torch.ones(1, 2))
        raise KeyError("no more")

    results = uses(pool)[use].map(source())
    assert [next(results).shape, next(results).shape] == [(1, 2), (1, 2)]
    with pytest.raises(KeyError, match="no more"):
        next(results)


def test_an_ensembles_outputs_do_not_wait_for_the_garbage_collector(pool: Pool) -> None:
    gc.collect()
    gc.disable()
    try:
        ensemble = pool.ensemble(["echo", "echo"], lambda outputs: outputs[0])
        future = ensemble.submit(torch.ones(1, 100_000))
        kept = weakref.ref(future.result(60))
        del future
        end = time.monotonic() + 10
        while kept() is not None and time.monotonic() < end:  # the thread that combined them may be about to leave
            time.sleep(0.01)
        assert kept() is None
    finally:
        gc.enable()


ENDS = """
import sys, time, torch, rankwise
def build():
    return lambda x: (time.sleep(0.1), x + 1)[1]
def slowly(outputs):
    time.sleep(0.2)
    return outputs[0]
def abandoned():
    pool = rankwise.Pool({"m": rankwise.Model(build)}, workers=1)
    return [pool.submit("m", torch.ones(1)) for _ in range(3)]
if __name__ == "__main__":
    print([future.result(60).item() for future in abandoned()])
    with rankwise.Pool({"m": rankwise.Model(build)}, workers=1) as pool:
        futures = [pool.ensemble(["m"], slowly).submit(torch.ones(1)) for _ in range(3)]
    print([future.done() for future in futures], flush=True)
    for future in abandoned():
        future.add_done_callback(lambda future: print(future.result().item(), flush=True))
"""


@pytest.mark.live
def test_what_was_submitted_is_done_also_where_nobody_has_the_pool_any_more(tmp_path: Path) -> None:
    """Futures that somebody waits for, those of an ensemble, and those that nobody waits for when the script ends."""
    (tmp_path / "script.py").write_text(ENDS)
    done = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=100)

    assert done.stdout.split("\n") == ["[2.0, 2.0, 2.0]", "[True, True, True]", "2.0", "2.0", "2.0", ""], done.stderr
    assert done.returncode == 0
