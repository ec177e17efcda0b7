"""What all models have in common: every outcome is counted, failures of the model are noted, and followers see what was answered."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest

from rankwise.pool.errors import pool_full
from rankwise.serve.answering import Answering, Tally
from rankwise.serve.errors import NotFound, RequestError
from rankwise.serve.infer_request import InferRequest, InferResponse, Output

OUTPUTS: list[Output] = [("y", "FP32", np.zeros(1, np.float32))]


class Model(Answering):
    def __init__(self, raises: BaseException | None = None) -> None:
        self.noted: list[str] = []
        super().__init__("net", "2", lambda text, name: self.noted.append(f"{name}: {text}"))
        self._raises = raises

    async def _answer(self, request: InferRequest) -> InferResponse:
        if self._raises is not None:
            raise self._raises
        return self.respond(request, OUTPUTS, how="well")


def ask(model: Model) -> Any:
    return asyncio.run(model.infer(InferRequest({}, id="7")))


def counts(model: Model) -> tuple[int, int]:
    return model.tally.of("success")[0], model.tally.of("fail")[0]


def test_an_answer_names_its_model_and_is_counted_and_shown() -> None:
    model, seen = Model(), []
    model.follow = lambda request, outputs: seen.append((request.id, outputs))

    answer = ask(model)

    assert (answer.model_name, answer.model_version, answer.id, answer.parameters) == ("net", "2", "7", {"how": "well"})
    assert counts(model) == (1, 0)
    assert abs(model.tally.last_ms - time.time() * 1e3) < 60_000
    assert seen == [("7", OUTPUTS)]
    assert not model.noted


@pytest.mark.parametrize(
    ("error", "status", "is_noted"),
    [
        (RequestError("wrong"), 400, False),
        (NotFound("gone"), 404, False),
        (RequestError("busy", 429), 429, True),
        (pool_full("net", 1, "tasks"), 429, True),
        (ValueError("bad row"), 500, True),
    ],
)
def test_a_failure_is_counted_and_noted_unless_the_client_is_at_fault(error: Exception, status: int, is_noted: bool) -> None:
    model = Model(error)
    model.follow = lambda request, outputs: pytest.fail("there is nothing to follow")

    with pytest.raises(RequestError) as caught:
        ask(model)

    assert (caught.value.status, caught.value.model) == (status, "net")
    assert model.noted == ([f"net: {caught.value}"] if is_noted else [])
    assert counts(model) == (0, 1)


def test_what_was_cancelled_is_counted_and_stays_cancelled() -> None:
    model = Model(asyncio.CancelledError())

    with pytest.raises(asyncio.CancelledError):
        ask(model)

    assert counts(model) == (0, 1) and not model.noted


def test_a_tally_adds_up() -> None:
    tally = Tally()
    tally.add("hit", 0)
    first = tally.of("hit")
    tally.add("hit", 0)

    assert first[0] == 1 and tally.of("hit")[0] == 2
    assert tally.of("hit")[1] > first[1] > 0
    assert tally.of("miss") == (0, 0)
    tally.add("miss", time.monotonic_ns() - 5_000_000_000)
    assert 5_000_000_000 <= tally.of("miss")[1] < 20_000_000_000
