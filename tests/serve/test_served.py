"""One model as the server knows it: loaded, replaced, unloaded, and what it gives where nobody has said so."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

pytest.importorskip("httptools")

from rankwise.pool import Model
from rankwise.protocol import TensorSpec
from rankwise.serve.errors import Unavailable
from rankwise.serve.infer_request import InferRequest
from rankwise.serve.models_file import Entry
from rankwise.serve.served import Served, subtracted

X = TensorSpec("x", "FP32", (-1, 4))


class Pool:
    """A pool of one model, which does at once what it is asked."""

    can_change = True

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.replicas, self.batches, self.fails = 0, dict[int, tuple[int, int]](), False
        self.model: Any = lambda x: 2 * x

    def submit(self, key: str, *arrays: Any, deadline_s: float | None, priority: int) -> Future[Any]:
        self.asked += [array.shape for array in arrays] or ["nothing"]
        (x,) = arrays
        count, ns = self.batches.get(len(x), (0, 0))
        self.batches[len(x)] = count + 1, ns + 10
        return self._done(lambda: self.model(x))

    def load(self, key: str, model: Any = None) -> Future[Any]:
        def build() -> None:
            if self.fails:
                raise OSError("no such file: weights.pt")
            self.replicas = 1

        return self._done(build)

    reload = load

    def stats(self) -> dict[str, Any]:
        return {"models": {"m": {"replicas": self.replicas, "batches": dict(self.batches)}}}

    def unload(self, key: str) -> None:
        self.replicas = 0

    def _done(self, call: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)
        return future


def entry(**facts: Any) -> Entry:
    return Entry("m", "1", "m", Model("tests.serve.models:echo"), **{"inputs": (X,), **facts})


def served(pool: Pool, **facts: Any) -> Served:
    return Served(entry(**facts), pool, None, lambda *said: None)  # type: ignore[arg-type]


def ask(model: Served, *rows: float) -> Any:
    x = np.repeat(np.array(rows, np.float32)[:, None], 4, axis=1)
    return asyncio.run(model._answer(InferRequest({"x": ("FP32", x)}, None, "7", {}))).outputs[0][2]


def test_outputs_nobody_declared_are_found_out_with_two_sizes_and_not_counted() -> None:
    pool = Pool()
    pool.model = lambda x: {"y": x[:, :3], "whole": np.zeros((1, 5), np.int64)}
    model = served(pool)

    asyncio.run(model.load())

    assert model.outputs == (TensorSpec("y", "FP32", (-1, 3)), TensorSpec("whole", "INT64", (1, 5)))
    assert pool.asked == [(2, 4), (3, 4)] and model.batches(model.numbers()) == {}
    pool.submit("m", np.zeros((3, 4)), deadline_s=None, priority=0)
    assert model.batches(model.numbers()) == {3: (1, 10)}


Y, W = TensorSpec("y", "FP32", (-1, 4)), TensorSpec("w", "BYTES", (-1,))


@pytest.mark.parametrize("facts", [{"outputs": (Y,)}, {"inputs": ()}, {"inputs": (W,)}])
def test_what_is_declared_or_cannot_be_tried_is_not_tried(facts: dict[str, Any]) -> None:
    pool = Pool()
    model = served(pool, **facts)

    asyncio.run(model.load(entry(**facts)))

    assert pool.asked == [] and model.state == "READY" and model.outputs == facts.get("outputs", ())


def test_a_model_that_takes_no_zeros_is_ready_all_the_same() -> None:
    pool = Pool()
    pool.model = lambda x: 1 / 0
    model = served(pool)

    asyncio.run(model.load())

    assert (model.state, model.outputs) == ("READY", ())


def test_one_that_cannot_be_had_says_why_and_may_be_had_later() -> None:
    pool = Pool()
    model, pool.fails = served(pool), True
    assert model.state == "LOADING"

    with pytest.raises(Unavailable, match="no such file"):
        asyncio.run(model.load())
    assert model.state == "UNAVAILABLE" and "no such file" in model.reason

    pool.fails = False
    asyncio.run(model.load())
    assert (model.state, model.reason) == ("READY", "")


def test_where_the_new_one_cannot_be_had_the_old_one_goes_on() -> None:
    pool = Pool()
    model = served(pool)
    asyncio.run(model.load())
    pool.fails = True

    with pytest.raises(Unavailable, match="the old one goes on answering"):
        asyncio.run(model.load(entry(inputs=(TensorSpec("z", "FP32", (-1, 9)),))))

    assert model.state == "READY" and model.inputs == (X,) and ask(model, 1.0).tolist() == [[2.0] * 4]
    pool.fails = False
    asyncio.run(model.load())
    assert model.reason == ""


def test_a_new_entry_is_the_one_that_counts_once_it_is_there() -> None:
    pool = Pool()
    model = served(pool)
    asyncio.run(model.load())
    pool.model = lambda x: x[:, :2]

    asyncio.run(model.load(entry(inputs=(TensorSpec("x", "FP32", (-1, 9)),))))

    assert model.inputs[0].shape == (-1, 9) and model.outputs[0].shape == (-1, 2)


def test_what_was_unloaded_refuses_until_it_is_loaded() -> None:
    pool = Pool()
    model = served(pool)
    asyncio.run(model.load())
    model.unload()
    with pytest.raises(Unavailable, match="'m' is unloaded"):
        ask(model, 1.0)
    asyncio.run(model.load())
    assert ask(model, 1.0).tolist() == [[2.0] * 4]


def test_kept_answers_are_of_this_model_and_of_the_same_request() -> None:
    pool = Pool()
    model = served(pool, cache_bytes=1 << 20, outputs=(TensorSpec("y", "FP32", (-1, 4)),))
    asyncio.run(model.load())

    assert ask(model, 1.0).tolist() == ask(model, 1.0).tolist() == [[2.0] * 4]
    ask(model, 3.0)
    assert len(pool.asked) == 2
    pool.model = lambda x: 5 * x
    asyncio.run(model.load())
    assert ask(model, 1.0).tolist() == [[5.0] * 4] and len(pool.asked) == 3


def test_batches_less_others_are_those_that_are_left() -> None:
    assert subtracted({1: (5, 100), 2: (1, 10), 8: (2, 7)}, {1: (2, 30), 2: (1, 10), 4: (1, 1)}) == {1: (3, 70), 8: (2, 7)}
