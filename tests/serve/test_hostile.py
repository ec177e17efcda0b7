"""Whatever is sent, by whoever: an answer that says what is wrong, never a fault of ours, no hang, no growing memory."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.environments import Unavailable, environment
from rankwise.serve.serving import Serving
from tests.serve.command import MODELS, started
from tests.serve.http_client import Client, tensor

WHOLE: dict[str, Any] = {
    "id": "7",
    "inputs": [tensor("a", [[1, 2, 3, 4]], parameters={}), tensor("b", [[1, 1, 1, 1]])],
    "outputs": [{"name": "sum", "parameters": {"binary_data": True}}],
    "parameters": {"timeout": 5_000_000, "priority": 2},
}
PLACES = [
    *(("id",), ("inputs",), ("outputs",), ("parameters",), ("inputs", 0), ("outputs", 0), ("outputs", 0, "parameters")),
    *(("inputs", 0, key) for key in ("name", "shape", "datatype", "data", "parameters")),
    *(("inputs", 0, "shape", 0), ("inputs", 0, "data", 2), ("parameters", "timeout"), ("parameters", "priority"), ("outputs", 0, "name")),
]
ODD: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["FP32", "BYTES", "a", "\ud800", "\0", 2**31, 2**63, -1, 1e400]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
BOMB = gzip.compress(b"\0" * (64 << 20))
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    copied = list(value) if isinstance(value, list) else dict(value)
    copied[place[0]] = replaced(copied[place[0]], place[1:], new)
    return copied


def check(answer: Any, allowed: tuple[int, ...] = (200, 400)) -> None:
    assert answer.status in allowed, (answer.status, answer.body[:300])
    if answer.status != 200:
        assert answer.error and "inside the server" not in answer.error


@QUICK
@given(place=st.sampled_from(PLACES), new=ODD)
def test_a_request_with_one_thing_changed_is_answered_or_refused(client: Client, place: tuple[Any, ...], new: Any) -> None:
    check(client.infer("sums", replaced(WHOLE, place, new)), (200, 400, 504))


@QUICK
@given(body=st.binary(max_size=300), length=st.none() | st.integers(-2, 400).map(str) | st.text("0123456789 +-x", max_size=5))
def test_any_bytes_are_refused(client: Client, body: bytes, length: str | None) -> None:
    headers = {} if length is None else {"Inference-Header-Content-Length": length}
    check(client.ask("POST", "/v2/models/sums/infer", body, headers))


@QUICK
@given(
    path=st.text("/abv2.%0FEmodelsinferx;?#:@ \t".replace(" \t", ""), max_size=40),
    method=st.sampled_from(["GET", "POST", "PUT", "HEAD", "DELETE"]),
)
def test_any_path_is_answered(client: Client, path: str, method: str) -> None:
    answer = client.ask(method, "/" + path, b"" if method != "HEAD" else None)
    assert answer.status in (200, 400, 404, 405)


def test_deep_nesting_costs_an_error_and_nothing_else(client: Client) -> None:
    for body in (
        b"[" * 200_000,
        b'{"inputs":' * 50_000,
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":' + b"[" * 90_000 + b"]" * 90_000 + b"}]}",
    ):
        check(client.ask("POST", "/v2/models/free/infer", body))


@contextlib.contextmanager
def watched(path: Path) -> Iterator[tuple[str, psutil.Process, subprocess.Popen[str]]]:
    path.joinpath("M.toml").write_text(MODELS)
    with started(path / "M.toml", "--quiet", "--max-body", "8MB") as (process, address), Client(address) as client:
        client.wait_until_ready()
        yield address, psutil.Process(process.pid), process


def garbage(rng: random.Random) -> bytes:
    body = json.dumps({"inputs": [tensor("x", [[1, 2, 3, 4]])]}).encode()
    head = b"POST /v2/models/moody/infer HTTP/1.1\r\nHost: x\r\n"
    whole = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    kind = rng.randrange(7)
    if kind == 0:
        return rng.randbytes(rng.randrange(2000))
    if kind == 1:
        return whole[: rng.randrange(len(whole))]
    if kind == 2:
        return head + b"Content-Length: %d\r\n\r\n" % rng.randrange(1 << 40) + body
    if kind == 3:
        return b"GET /v2 HTTP/1.1\r\n" + b"X: %s\r\n" % (b"y" * rng.randrange(60_000)) * 3
    if kind == 4:
        return head + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB) + BOMB
    if kind == 5:
        flipped = bytearray(whole)
        flipped[rng.randrange(len(flipped))] = rng.randrange(256)
        return bytes(flipped)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"%x\r\n%s\r\n" % (n, b"a" * n) for n in range(1, rng.randrange(2, 40)))


@pytest.mark.live
@pytest.mark.timeout(600)
def test_memory_stays_flat_under_garbage_and_nothing_is_left_behind(tmp_path: Path) -> None:
    """First a round to fill what is kept anyway, then many more; at the end it answers, and its log holds no traceback."""
    with watched(tmp_path) as (address, process, running):
        host, _, port = address.rpartition(":")

        def throw(seed: int, times: int) -> None:
            rng = random.Random(seed)
            for _ in range(times):
                with socket.create_connection((host, int(port)), timeout=30) as sock, contextlib.suppress(OSError):
                    sock.sendall(garbage(rng))
                    if rng.random() < 0.5:
                        sock.shutdown(socket.SHUT_WR)
                        sock.recv(1 << 16)

        throw(0, 500)
        before = process.memory_info().rss
        threads = [threading.Thread(target=throw, args=(seed, 400)) for seed in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        grown = process.memory_info().rss - before
        end = time.monotonic() + 30
        while process.num_fds() > 200:
            assert time.monotonic() < end, "connections were left behind"
            time.sleep(0.1)
        with Client(address) as client:
            assert client.infer("moody", {"inputs": [tensor("x", [[1, 2, 3, 4]])]}).status == 200
            open_requests = re.search(r"^rankwise_serve_open_requests (\S+)", client.get("/metrics").body.decode(), re.MULTILINE)
            assert open_requests and float(open_requests[1]) == 1
        assert grown < 48 << 20, f"{grown / 1e6:.0f} MB more than before"
        running.terminate()
        assert "Traceback" not in running.communicate(timeout=60)[1]


@pytest.mark.live
@pytest.mark.timeout(1200)
def test_schemathesis_finds_nothing(serving: Serving, client: Client, tmp_path: Path) -> None:
    """Valid and invalid requests made from a description of the REST surface."""
    try:
        python = environment("schemathesis", "schemathesis==4.32.5")
    except Unavailable as error:
        pytest.skip(str(error))
    checks = "status_code_conformance,content_type_conformance,response_schema_conformance,unsupported_method"
    command = [python.with_name("schemathesis"), "run", Path(__file__).with_name("openapi.json"), "-u", f"http://{serving.http}"]
    options = ["--checks", checks, "--phases", "examples,coverage,fuzzing", "-n", "60", "--seed", "1", "--suppress-health-check", "all"]
    done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=1000)

    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    with Client(serving.http) as anew:
        assert anew.get("/v2/health/ready").status == 200
