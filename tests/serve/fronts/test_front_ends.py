"""Behind front-end processes everything is answered as without them; those that end are replaced, and none is left behind."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankwise.serve.serving import Serving, serve
from tests.families import mostly_live
from tests.serve import corpus
from tests.serve.command import MODELS, started
from tests.serve.conftest import LIMITS, entries
from tests.serve.corpus import Request
from tests.serve.fronts.conftest import behind_front_ends
from tests.serve.http_client import Client, tensor
from tests.serve.test_http import (  # the same, through front ends
    test_a_body_beyond_the_limit_is_refused_while_it_comes,  # noqa: F401
    test_garbage_is_refused_and_the_connection_closed,  # noqa: F401
    test_requests_may_come_in_pieces_and_several_at_once,  # noqa: F401
    test_upgrades_are_not_taken_and_expectations_met,  # noqa: F401
    test_who_does_not_read_does_not_keep_the_others_waiting,  # noqa: F401
    test_who_leaves_before_the_answer_has_its_task_cancelled,  # noqa: F401
    test_who_says_nothing_or_half_is_cut_off,  # noqa: F401
)

LONG_S = 60.0
ROW = tensor("x", [[1, 2, 3, 4]])
SLOW = tensor("x", [[3_000_000, 0, 0, 0]])


@pytest.fixture(scope="module")
def alone(serving: Serving) -> Iterator[Serving]:
    """The same pool behind a server that reads HTTP itself."""
    known = entries()
    running = serve(serving.server.catalogue.pool, entries=known, http="127.0.0.1:0", grpc="", block=False, limits=LIMITS, front_ends=0)
    assert running is not None
    with running, Client(running.http) as client:
        client.wait_until_ready()
        yield running


def front_ends(parent: int) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(parent).children():
        with contextlib.suppress(psutil.Error):  # it ends at this moment
            if "rankwise.serve.fronts.front_end_process" in child.cmdline():
                found.append(child)
    return found


def answered(address: str, request: Request, headers: dict[str, str] | None = None) -> tuple[int, list[tuple[str, str]], bytes]:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.request(request.method, request.path, request.body(), {**request.all_headers(), **(headers or {})})
        response = connection.getresponse()
        return response.status, [(name, value) for name, value in response.getheaders() if name != "Date"], response.read()
    finally:
        connection.close()


@settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.one_of(corpus.good(), corpus.bad()), st.sampled_from([{}, {"Accept-Encoding": "gzip"}, {"X-Request-Id": "mine"}]))
def test_the_answer_is_the_same_to_the_byte(serving: Serving, alone: Serving, client: Client, asked: Request, more: Any) -> None:
    ours, theirs = (answered(server.http, asked, more) for server in (serving, alone))
    assert ours == theirs


PARAMETERS = [{"timeout": 2**70}, {"timeout": 1.5}, {"priority": -1}, {"key": "ä"}, {"timeout": 5_000_000, "priority": 3}, {"own": None}]


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_parameters_mean_the_same(parameters: dict[str, Any], serving: Serving, alone: Serving, client: Client) -> None:
    request = Request("", "/v2/models/moody/infer", {"inputs": [ROW], "parameters": parameters})
    assert answered(serving.http, request) == answered(alone.http, request)


@pytest.mark.parametrize(
    "path", ["/v2", "/v2/models/sums", "/v2/models/nobody", "/v2/health/live", "/", "/page.js", "/nowhere", "/v2/models/two/config"]
)
def test_everything_but_inference_is_answered_too(path: str, serving: Serving, alone: Serving, client: Client) -> None:
    for method in ("GET", "HEAD", "POST"):
        request = Request("", path, None, method=method)
        assert answered(serving.http, request) == answered(alone.http, request)


def test_a_body_without_json_is_what_the_model_takes(serving: Serving, client: Client) -> None:
    answer = client.ask("POST", "/v2/models/moody/infer", bytes(16), {"Inference-Header-Content-Length": "0"})
    assert answer.status == 200 and answer.body.endswith(bytes(16))
    answer = client.ask("POST", "/v2/models/moody/infer", bytes(15), {"Inference-Header-Content-Length": "0"})
    assert answer.status == 400 and "16 bytes" in answer.error


def test_requests_are_counted_once(serving: Serving, client: Client) -> None:
    def count(status: str) -> float:
        lines = client.get("/metrics").body.decode().splitlines()
        name = f'rankwise_serve_requests_total{{model="moody",protocol="http",status="{status}"}} '
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    before = count("200"), count("500")
    for first in (1, 2, -1):
        client.infer("moody", {"inputs": [tensor("x", [[first, 0, 0, 0]])]})
    assert (count("200"), count("500")) == (before[0] + 2, before[1] + 1)


def test_connections_are_dealt_out_evenly(serving: Serving, client: Client) -> None:
    held = [http.client.HTTPConnection(*serving.http.split(":")) for _ in range(8)]  # type: ignore[arg-type]
    try:
        for connection in held:
            connection.request("GET", "/v2/health/live")
            assert connection.getresponse().read()
        counts = [len([c for c in process.net_connections("tcp") if c.status == "ESTABLISHED"]) for process in front_ends(os.getpid())]
    finally:
        for connection in held:
            connection.close()
    assert len(counts) == 2 and min(counts) >= 4


@pytest.fixture
def own() -> Iterator[Serving]:
    """A server of this test alone: what replaces a process of the others' would be taken for one that is left behind."""
    with behind_front_ends() as running, Client(running.http) as client:
        client.wait_until_ready()
        yield running


def test_a_killed_front_end_is_replaced_and_the_others_go_on(own: Serving) -> None:
    children = front_ends(os.getpid())[-2:]
    wrong: list[Any] = []
    stop, broken, right = threading.Event(), [0], [0]

    def ask(number: int) -> None:
        while not stop.is_set():
            try:
                with Client(own.http) as client:
                    for i in range(20):
                        answer = client.infer("moody", {"inputs": [tensor("x", [[number, i, 0, 0]])]})
                        if answer.status != 200 or answer.json["outputs"][0]["data"] != [2.0 * number, 2.0 * i, 0, 0]:
                            wrong.append((answer.status, answer.body))
                        right[0] += 1
            except (ConnectionError, http.client.HTTPException):  # the connection's own process was killed
                broken[0] += 1

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for first in children:
            known = len(front_ends(os.getpid()))
            first.kill()
            end, before = time.monotonic() + LONG_S, right[0]
            while first in front_ends(os.getpid()) or len(front_ends(os.getpid())) < known or right[0] < before + 50:
                assert time.monotonic() < end, (wrong, broken, right)
                time.sleep(0.05)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong and right[0] > 100 and broken[0] <= 2 * 4


@pytest.mark.live
def test_one_that_says_nothing_is_replaced(own: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankwise.serve.fronts.front_ends._SILENT_S", 3.0)
    known = front_ends(os.getpid())
    known[-1].suspend()
    end = time.monotonic() + LONG_S
    while known[-1] in front_ends(os.getpid()) or len(front_ends(os.getpid())) < len(known):
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("number", mostly_live([signal.SIGTERM, signal.SIGKILL]))
def test_none_is_left_behind(number: signal.Signals, tmp_path: Path) -> None:
    """After SIGTERM, what is under way is answered; whoever is killed takes all of them along."""
    (tmp_path / "MODELS.toml").write_text(MODELS)
    found: list[Any] = []
    with started(tmp_path / "MODELS.toml", "--front-ends", "2", "--quiet") as (process, address), ExitStack() as stack:
        children, end = front_ends(process.pid), time.monotonic() + LONG_S
        while not any(child.net_connections("tcp") for child in children):  # the first few the server reads itself
            assert time.monotonic() < end
            client = stack.enter_context(Client(address))
            client.wait_until_ready()
            children = front_ends(process.pid)
        assert len(children) == 2
        if number == signal.SIGTERM:
            asking = threading.Thread(target=lambda: found.append(client.infer("moody", {"inputs": [SLOW]})))
            asking.start()
            with Client(address) as other:
                while not _is_busy(other):
                    assert time.monotonic() < end
                    time.sleep(0.02)
        process.send_signal(number)
        process.wait(LONG_S)
        if number == signal.SIGTERM:
            asking.join()
            assert found[0].status == 200 and process.returncode == 0
    assert not psutil.wait_procs(children, LONG_S)[1]


def _is_busy(client: Client) -> bool:
    return bool([worker for worker in json.loads(client.get("/status").body)["workers"] if worker["running"]])
