"""Who may ask the server, and what its log says of a request."""

from __future__ import annotations

import json
import logging
import sys
import time

import pytest

from rankwise.serve.access import AccessGuard, JsonLines, log_request, request_id
from rankwise.serve.errors import RequestError


def status_of(guard: AccessGuard, path: str = "/v2", **headers: str) -> int:
    try:
        guard.check_http(path, headers)
    except RequestError as error:
        return error.status
    return 200


@pytest.mark.parametrize(
    ("authorization", "wanted"),
    [
        ("Bearer secret", 200),
        ("bearer  secret ", 200),
        ("Bearer secre", 401),
        ("Bearer secret2", 401),
        ("Bearer", 401),
        ("Basic secret", 401),
        ("secret", 401),
        ("", 401),
        ("Bearer \udcff", 401),
    ],
)
def test_a_token_has_to_be_the_right_one(authorization: str, wanted: int) -> None:
    assert status_of(AccessGuard("secret", is_loopback=False), authorization=authorization) == wanted


def test_where_there_is_no_token_none_is_asked_for() -> None:
    assert status_of(AccessGuard("", is_loopback=False)) == 200


def test_probes_and_the_page_need_no_token_and_the_rest_does() -> None:
    guard = AccessGuard("secret", is_loopback=False)

    assert {status_of(guard, path) for path in ("/v2/health/live", "/v2/health/ready", "/", "/page.js", "/page.css")} == {200}
    assert {status_of(guard, path) for path in ("/metrics", "/v2/health/live/", "/v2/models/a/infer", "//")} == {401}


@pytest.mark.parametrize(("token", "is_loopback", "may"), [("", True, True), ("secret", False, True), ("", False, False)])
def test_models_are_controlled_by_who_is_here_or_has_the_token(token: str, is_loopback: bool, may: bool) -> None:
    assert AccessGuard(token, is_loopback).may_control is may


@pytest.mark.parametrize(
    ("origin", "host", "on_loopback", "elsewhere"),
    [
        ("http://localhost:8000", "localhost:8000", 200, 200),
        ("http://127.0.0.1:8000", "127.0.0.1:8000", 200, 200),
        ("http://[::1]:8000", "[::1]:8000", 200, 200),
        ("http://localhost:9000", "localhost:8000", 403, 403),
        ("http://evil.example", "localhost:8000", 403, 403),
        ("http://evil.example:8000", "evil.example:8000", 403, 200),  # its name was made to lead here
        ("null", "localhost:8000", 403, 403),
        ("http://[", "localhost:8000", 403, 403),
    ],
)
def test_pages_of_other_sites_may_not_ask(origin: str, host: str, on_loopback: int, elsewhere: int) -> None:
    assert status_of(AccessGuard("", is_loopback=True), origin=origin, host=host) == on_loopback
    assert status_of(AccessGuard("", is_loopback=False), origin=origin, host=host) == elsewhere


def test_the_origin_is_looked_at_where_no_token_is_needed_too() -> None:
    assert status_of(AccessGuard("secret", is_loopback=True), "/", origin="http://evil.example", host="localhost") == 403


@pytest.mark.parametrize("given", ["a", "trace-1/2 3", "x" * 128])
def test_a_clients_own_id_is_kept(given: str) -> None:
    assert request_id(given) == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a\nb", "ä", "\x7f"])
def test_any_other_id_is_replaced_by_a_new_one(given: str) -> None:
    one, other = request_id(given), request_id(given)

    assert given not in (one, other)
    assert one != other


def test_a_request_is_one_line_of_json(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rankwise.serve.access"):
        log_request("http", "7", "GET /\n", 200, time.monotonic() - 0.5, "net")
        log_request("http", "8", "GET /", 503, time.monotonic(), "", "it is gone")

    first, second = (JsonLines().format(record) for record in caplog.records)
    assert "\n" not in first
    said = json.loads(first)
    assert (said["level"], said["logger"], said["id"], said["status"], said["model"]) == ("info", "rankwise.serve.access", "7", 200, "net")
    assert 500 <= said["ms"] < 60_000 and "error" not in said
    assert json.loads(second)["error"] == "it is gone" and "model" not in json.loads(second)


def test_a_quiet_log_gets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rankwise.serve.access"):
        log_request("http", "7", "GET /", 200, 0.0, "net")

    assert not caplog.records


def test_a_traceback_stays_on_the_line_and_times_are_of_utc() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        record = logging.LogRecord("a", logging.ERROR, "f.py", 1, "it %s", ("failed",), sys.exc_info())
    record.created, record.msecs = 0.0, 7.0

    said = json.loads(JsonLines().format(record))

    assert said["time"] == "1970-01-01T00:00:00.007Z"
    assert said["message"] == "it failed" and "ValueError: broken" in said["traceback"]
