"""What a client is told when a request fails: one sentence, a status of HTTP, one of gRPC."""

from __future__ import annotations

import pytest

from rankwise.errors import RankwiseError, UnreadableInput, UsageError
from rankwise.pool.errors import deadline_exceeded, pool_closed, pool_full
from rankwise.serve.errors import ModelFailed, NotAllowed, NotFound, RequestError, Unavailable, as_request_error


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "status", "grpc"),
    [
        (RequestError("a"), 400, "INVALID_ARGUMENT"),
        (RequestError("a", 401), 401, "UNAUTHENTICATED"),
        (RequestError("a", 418), 418, "INVALID_ARGUMENT"),
        (NotFound("a"), 404, "NOT_FOUND"),
        (NotAllowed("PUT", "GET"), 405, "UNIMPLEMENTED"),
        (Unavailable("a"), 503, "UNAVAILABLE"),
        (ModelFailed("a"), 500, "INTERNAL"),
    ],
)
def test_each_kind_has_a_status_of_both_protocols(error: RequestError, status: int, grpc: str) -> None:
    assert (error.status, error.grpc) == (status, grpc)
    assert as_request_error(error, "net") is error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("this row is bad\nand more"), "model 'net' raised ValueError: this row is bad"),
        (ValueError("  \n "), "model 'net' raised ValueError"),
        (ValueError(), "model 'net' raised ValueError"),
        (Odd(), "model 'net' raised Odd"),
        (ValueError("x" * 5000), f"model 'net' raised ValueError: {'x' * 988}"),
    ],
)
def test_what_a_model_raises_is_one_sentence(error: Exception, said: str) -> None:
    found = as_request_error(error, "net")

    assert (found.status, str(found)) == (500, said)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (pool_full("net", 3, "tasks"), 429),
        (deadline_exceeded("net", 1.0, was_running=True), 504),
        (pool_closed(), 503),
        (UsageError("it never fits"), 413),
        (UnreadableInput("weights.pt cannot be read", why="no such file", next=("look",)), 500),
    ],
)
def test_a_finding_is_told_with_its_code_and_without_advice(error: RankwiseError, status: int) -> None:
    found = as_request_error(error, "net")

    assert (found.status, str(found)) == (status, f"{error.finding.code} {error.finding.summary}")
