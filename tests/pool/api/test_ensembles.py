"""What ensembles, splits and routers make of the outputs of several models, and whose thread they do it in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rankwise.errors import UsageError  # noqa: E402
from rankwise.pool import Model, Pool  # noqa: E402
from rankwise.pool.api.ensembles import mean, vote  # noqa: E402

HERE = "tests.pool.models"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    names = {"echo": "echo", "double": "moody", "sleeper": "sleeper"}
    with Pool({name: Model(f"{HERE}:{build}", replicas=1) for name, build in names.items()}, workers=1, max_queue=8) as pool:
        yield pool


@pytest.mark.parametrize("dtype", ["uint8", "int64", "bool", "float16", "bfloat16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("as_array", [False, True])
def test_a_mean_is_computed_wide_enough(dtype: str, as_array: bool) -> None:
    values = {"uint8": (200, 100, 250), "bool": (1, 1, 0), "float16": (6e4, 6e4, 6e4), "float32": (3e38, 3e38, 3e38)}.get(dtype, (2, 3, 5))
    outputs = [torch.full((2,), value, dtype=getattr(torch, dtype)) for value in values]
    if as_array:
        if dtype == "bfloat16":
            return
        outputs = [output.numpy() for output in outputs]
    result = mean(outputs)

    right = sum(float(complex(output[0]).real) for output in outputs) / 3
    keeps = dtype.startswith(("float", "bfloat", "complex"))
    assert complex(result[0]).real == pytest.approx(right, rel=0.01) and type(result) is type(outputs[0])
    assert str(result.dtype).removeprefix("torch.") == (dtype if keeps else "float64" if as_array else "float32")


@pytest.mark.parametrize(
    ("outputs", "right"),
    [
        ([1, 2], 1.5),
        ([True, True, True], 1.0),
        ([np.float32(1), np.float32(2)], np.float32(1.5)),
        ([{"a": [1.0, None], "b": ("x", 3)}, {"a": [2.0, None], "b": ("x", 4)}], {"a": [1.5, None], "b": ("x", 3.5)}),
    ],
)
def test_a_mean_of_other_things(outputs: list[Any], right: Any) -> None:
    assert mean(outputs) == right


@pytest.mark.parametrize(
    ("outputs", "right"),
    [
        ([[-1, 5], [2, 5], [2, -7]], [2, 5]),
        ([[3], [1]], [1]),  # a draw: the lowest
        ([[True], [True], [False]], [True]),
        ([[10**12], [10**12], [4]], [10**12]),
    ],
)
@pytest.mark.parametrize("make", [torch.tensor, np.array])
def test_votes_over_labels(make: Any, outputs: list[Any], right: Any) -> None:
    result = vote([make(output) for output in outputs])
    assert result.tolist() == right and result.dtype == make(outputs[0]).dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_votes_over_scores(dtype: torch.dtype) -> None:
    scores = [torch.nn.functional.one_hot(torch.tensor([label, 0]), 5).to(dtype) for label in (1, 2, 2)]
    assert vote(scores).tolist() == [2, 0]


def test_votes_over_plain_labels() -> None:
    assert vote([3, 3, 1]) == 3 and vote(["cat", "dog", "dog"]) == "dog" and vote([{"a": 2}, {"a": 2}]) == {"a": 2}


@pytest.mark.parametrize("merge", [mean, vote])
@pytest.mark.parametrize(
    "outputs",
    [[torch.ones(2), torch.ones(2, 1)], [np.ones(2), np.ones(3)], [{"a": 1}, {"b": 1}], [(1, 2), (1,)], [[1], (1,)], [None, "x"]],
)
def test_outputs_that_do_not_fit_each_other(merge: Any, outputs: list[Any]) -> None:
    with pytest.raises(UsageError):
        merge(outputs)


@pytest.mark.parametrize(
    "output",
    [
        *(torch.ones(3, 0), np.ones((3, 0)), torch.ones(2, 3).to_sparse(), torch.ones(2, 3).to(torch.float8_e4m3fn), 0.5),
        *(torch.tensor([[0.1, torch.nan]]), np.array([[0.1, np.nan]])),
        *(torch.tensor([[0.9], [0.2]]), torch.ones(3, 1, dtype=torch.bfloat16), np.array([[0.9]])),
    ],
)
def test_outputs_that_cannot_be_voted_over(output: Any) -> None:
    with pytest.raises(UsageError, match="no vote"):
        vote([output, output])


def test_a_combine_may_use_the_pool_and_take_its_time(pool: Pool) -> None:
    may_end, began = threading.Event(), threading.Event()

    def slow(outputs: list[Any]) -> Any:
        began.set()
        may_end.wait(60)
        return pool.submit("double", outputs[0]).result(60)

    whole = pool.ensemble(["echo", "double"], combine=slow).submit(torch.ones(1))
    assert began.wait(60)
    waited = threading.Event()
    pool.submit("double", torch.ones(1)).add_done_callback(lambda _: waited.set())  # by the thread that listens to all workers
    assert waited.wait(30) and not whole.done()
    may_end.set()
    assert whole.result(60).item() == 2.0


def test_no_thread_is_left_of_an_ensemble(pool: Pool) -> None:
    ensemble = pool.ensemble(["echo"], combine=lambda outputs: outputs[0])
    assert list(ensemble.map([1, 2, 3])) == [1, 2, 3]
    for thread in [thread for thread in threading.enumerate() if thread.name == "rankwise-combine"]:
        thread.join(30)
        assert not thread.is_alive()


def test_an_error_of_combine_is_the_futures(pool: Pool) -> None:
    with pytest.raises(ZeroDivisionError):
        pool.ensemble(["echo"], combine=lambda outputs: 1 / 0).submit(1).result(60)


def test_to_cancel_an_ensemble_is_to_cancel_its_parts(pool: Pool) -> None:
    first = pool.submit("sleeper", 0.3)
    whole = pool.ensemble(["sleeper", "sleeper", "sleeper"]).submit(0.0)

    assert whole.cancel() and whole.cancelled()
    with pytest.raises(CancelledError):
        whole.result(1)
    assert pool.stats()["models"]["sleeper"]["cancelled"] >= 1  # the others may have been sent already
    first.result(60)


@pytest.mark.parametrize("use", ["ensemble", "split", "router"])
def test_each_use_maps_in_order_and_waits_where_the_queue_is_full(pool: Pool, use: str) -> None:
    made: Any = {
        "ensemble": lambda: pool.ensemble(["echo", "echo"]),
        "split": lambda: pool.split({"echo": 0.5, "double": 0}),
        "router": lambda: pool.router(lambda x: "echo"),
    }[use]()
    assert [y.item() for y in made.map([torch.tensor([float(i)]) for i in range(50)], window=40)] == [float(i) for i in range(50)]


def test_a_split_maps_by_key(pool: Pool) -> None:
    split = pool.split({"echo": 0.5, "double": 0.5})
    results = list(split.map([torch.tensor([3.0 + i]) for i in range(12)], key=lambda x: int(x)))
    assert [y.item() / (3 + i) for i, y in enumerate(results)] == [1.0 if split.choose(3 + i) == "echo" else 2.0 for i in range(12)]


def test_no_window_is_the_usual_one(pool: Pool) -> None:
    async def through_amap() -> list[float]:
        return [y.item() async for y in pool.amap("echo", [np.float32([1.0])], window=None)]

    assert [y.item() for y in pool.router(lambda x: "echo").map([np.float32([1.0])], window=None)] == [1.0]
    assert asyncio.run(through_amap()) == [1.0]


@pytest.mark.parametrize(
    "use",
    [
        lambda pool: pool.ensemble("echo"),
        lambda pool: pool.ensemble(["echo"], combine=None),
        lambda pool: pool.ensemble(["echo"]).map([1], window=0),
        lambda pool: pool.split({}),
        lambda pool: pool.split(["echo"]),
        lambda pool: pool.split({"echo": float("nan")}),
        lambda pool: pool.split({"echo": -1, "double": 2}),
        lambda pool: pool.split({"echo": 0}),
        lambda pool: pool.split({"echo": "1"}),
        lambda pool: pool.router("echo"),
        lambda pool: pool.router(lambda x: None).submit(1),
    ],
)
def test_what_a_use_cannot_be_given(pool: Pool, use: Any) -> None:
    with pytest.raises(UsageError):
        use(pool)


def test_a_callback_that_would_end_the_thread_costs_no_other_result(pool: Pool) -> None:
    own = pool.ensemble(["echo"], combine=lambda outputs: outputs[0])
    told = threading.Event()

    def callback(_: Any) -> None:
        told.set()
        if threading.current_thread() is not threading.main_thread():  # the task was done before this was added
            raise asyncio.CancelledError

    own.submit(torch.ones(1)).add_done_callback(callback)

    assert told.wait(60) and own.submit(torch.ones(2)).result(60).tolist() == [1.0, 1.0]


def test_a_callback_of_an_ensemble_may_close_the_pool() -> None:
    with Pool({"sleeper": Model(f"{HERE}:sleeper")}, workers=1) as pool:
        own, closed = pool.ensemble(["sleeper"], combine=lambda outputs: outputs[0]), threading.Event()
        first, other = own.submit(0.2), own.submit(0.2)
        first.add_done_callback(lambda _: (pool.close(), closed.set()))

        assert closed.wait(60) and other.result(60)
