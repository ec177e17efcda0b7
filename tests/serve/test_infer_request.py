"""What a request says about its deadline and its priority."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise.serve.errors import RequestError
from rankwise.serve.infer_request import LEAST_URGENT, InferRequest


@pytest.mark.parametrize(
    ("parameters", "remaining_s", "wanted"),
    [
        ({}, None, None),
        ({"timeout": 0}, None, None),
        ({"timeout": 1_500_000}, None, 1.5),
        ({"timeout": "1500000"}, None, 1.5),  # gRPC clients send texts
        ({"timeout": 2_000_000}, 1.0, 1.0),
        ({"timeout": 1_000_000}, 2.0, 1.0),
        ({}, 0.0, 0.0),
        ({"timeout": 10**18}, None, 30 * 24 * 3600.0),
    ],
)
def test_the_deadline_is_the_nearest_there_is(parameters: dict[str, Any], remaining_s: float | None, wanted: float | None) -> None:
    assert InferRequest({}, parameters=parameters, remaining_s=remaining_s).deadline_s() == wanted


@pytest.mark.parametrize("timeout", [-1, True, 1.5, "1.5", "-1", "", "9" * 20, None, [1]])
def test_a_timeout_that_is_no_number_of_microseconds_is_told(timeout: Any) -> None:
    with pytest.raises(RequestError, match="timeout has to be"):
        InferRequest({}, parameters={"timeout": timeout}).deadline_s()


def test_one_is_the_most_urgent_and_what_says_nothing_comes_before_the_least() -> None:
    def priority(**parameters: int) -> int:
        return InferRequest({}, parameters=parameters).priority()

    assert priority(priority=1) > priority(priority=2) > priority() == priority(priority=0) > priority(priority=LEAST_URGENT)
    assert priority(priority=(1 << 32) - 1) < 0


@pytest.mark.parametrize("priority", [-1, 1 << 32, True, 1.0, "1", None])
def test_a_priority_that_is_no_whole_number_is_told(priority: Any) -> None:
    with pytest.raises(RequestError, match="priority has to be"):
        InferRequest({}, parameters={"priority": priority}).priority()
