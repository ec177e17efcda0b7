"""The head of an answer, and errors as answers."""

from __future__ import annotations

import json

import pytest

from rankwise.serve.errors import ModelFailed, NotAllowed, RequestError, Unavailable
from rankwise.serve.exchange import HttpResponse, as_error, as_json


def test_the_head_says_how_long_all_parts_are_together() -> None:
    response = HttpResponse(200, [b"abc", memoryview(b"de")], "text/plain", [("X-A", "1")])

    assert response.head("now", keep_alive=True) == (
        b"HTTP/1.1 200 OK\r\nDate: now\r\nContent-Length: 5\r\nContent-Type: text/plain\r\nX-A: 1\r\n\r\n"
    )


def test_an_answer_without_a_body_has_no_type_and_may_close() -> None:
    assert HttpResponse(204).head("now", keep_alive=False) == (
        b"HTTP/1.1 204 Error\r\nDate: now\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )


def test_a_value_is_an_answer_of_json() -> None:
    response = as_json({"a": [1]}, 201)

    assert (response.status, response.content_type, response.parts) == (201, "application/json", [b'{"a":[1]}'])


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (RequestError("why"), []),
        (RequestError("why", 401), [("WWW-Authenticate", "Bearer")]),
        (RequestError("why", 429), [("Retry-After", "1")]),
        (Unavailable("why"), [("Retry-After", "1")]),
        (ModelFailed("why"), []),
    ],
)
def test_an_error_says_why_and_what_helps(error: RequestError, headers: list[tuple[str, str]]) -> None:
    error.model = "net"

    response = as_error(error)

    assert (response.status, response.headers, response.model) == (error.status, headers, "net")
    assert json.loads(response.parts[0]) == {"error": "why"}


def test_a_method_that_is_not_allowed_names_the_one_that_is() -> None:
    assert as_error(NotAllowed("PUT", "GET")).headers == [("Allow", "GET")]


def test_half_a_surrogate_pair_in_an_error_is_no_further_error() -> None:
    assert json.loads(as_error(RequestError("a\udcffb")).parts[0]) == {"error": "a\\udcffb"}
