"""Raw sockets: half requests, wrong lengths, huge headers, slow clients, bombs. Each gets an error or is cut off; the server goes on."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rankwise.serve.serving import Serving
from tests.serve.conftest import LIMITS
from tests.serve.http_client import Client, tensor

BODY = json.dumps({"inputs": [tensor("x", [[1, 2, 3, 4]])]}).encode()
INFER = b"POST /v2/models/moody/infer HTTP/1.1\r\nHost: x\r\n"
WHOLE = INFER + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
LONG_S = 30


@pytest.fixture(autouse=True)
def still_answers(client: Client) -> Iterator[None]:
    yield
    with client:
        assert client.infer("moody", json.loads(BODY)).json["outputs"][0]["data"] == [2, 4, 6, 8]


def connected(serving: Serving) -> socket.socket:
    host, _, port = serving.http.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=LONG_S)


def read_all(sock: socket.socket) -> bytes:
    """Until the server closes the connection; fails where it never does."""
    found = b""
    try:
        while part := sock.recv(1 << 16):
            found += part
    except ConnectionResetError:
        pass
    return found


def told(serving: Serving, *parts: bytes) -> bytes:
    with connected(serving) as sock:
        for part in parts:
            sock.sendall(part)
        return read_all(sock)


def status_of(answer: bytes) -> int:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 "), answer[:200]
    assert list(json.loads(body)) == ["error"] and b"Traceback" not in body
    return int(head.split()[1])


GARBAGE: dict[str, tuple[bytes, int]] = {
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10, 400),
    "words": (b"hello there\r\n\r\n", 400),
    "no version": (b"GET /v2\r\n\r\n", 400),
    "other version": (b"GET /v2 HTTP/9.9\r\nHost: x\r\n\r\n", 400),
    "unknown method": (b"FROB /v2 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a proxy is wanted": (b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    "zero bytes": (b"\0" * 1000, 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "header without colon": (b"GET /v2 HTTP/1.1\r\nHost x\r\n\r\n", 400),
    "control characters": (b"GET /v2 HTTP/1.1\r\nHost: x\0y\r\n\r\n", 400),
    "length is a word": (INFER + b"Content-Length: many\r\n\r\n", 400),
    "length is negative": (INFER + b"Content-Length: -5\r\n\r\n", 400),
    "two lengths": (INFER + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", 400),
    "length and chunks": (INFER + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "length overflows": (INFER + b"Content-Length: 99999999999999999999999\r\n\r\n", 400),
    "chunk size is a word": (INFER + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
    "chunk size overflows": (INFER + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n", 400),
    "too long a body": (INFER + b"Content-Length: %d\r\n\r\n" % (LIMITS.body_bytes + 1), 413),
    "too long a line": (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n", 431),
    "too long a header": (b"GET /v2 HTTP/1.1\r\nX: " + b"a" * 70_000, 431),
    "too many headers": (b"GET /v2 HTTP/1.1\r\n" + b"X: y\r\n" * 12_000, 431),
}  # fmt: skip


@pytest.mark.parametrize("case", GARBAGE)
def test_garbage_is_refused_and_the_connection_closed(case: str, serving: Serving) -> None:
    sent, status = GARBAGE[case]

    assert status_of(told(serving, sent)) == status


def test_who_says_nothing_or_half_is_cut_off(serving: Serving) -> None:
    """All at once, because each takes as long as the limit."""
    halves = [
        b"G",
        b"GET /v2 HTT",
        INFER,
        INFER + b"Content-Length: 100\r\n\r\n",
        WHOLE[:-1],
        INFER + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
    ]
    sockets = [connected(serving) for _ in halves]
    for sock, half in zip(sockets, halves):
        sock.sendall(half)

    assert [status_of(read_all(sock)) for sock in sockets] == [408] * len(halves)
    for sock in sockets:
        sock.close()


def test_who_sends_a_byte_now_and_then_is_cut_off(serving: Serving) -> None:
    """In the headers, and in the body."""
    begun = time.monotonic()
    with connected(serving) as head, connected(serving) as body:
        body.sendall(INFER + b"Content-Length: 100000\r\n\r\n")
        ended: set[Any] = set()
        head.sendall(b"GET /v2 HTTP/1.1\r\n")
        while len(ended) < 2:
            assert time.monotonic() - begun < LONG_S
            for sock in {head, body} - ended:
                try:
                    sock.sendall(b"X: y\r\n"[:3] if sock is head else b"a")
                except OSError:
                    ended.add(sock)
            time.sleep(0.1)


def test_who_leaves_in_the_middle_is_forgotten(serving: Serving) -> None:
    for part in (b"", b"GE", INFER, WHOLE[:-3]):
        with connected(serving) as sock:
            sock.sendall(part)
    end = time.monotonic() + LONG_S
    while len(serving.server._http.connections) > 1 or serving.server._http.buffered:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_who_leaves_before_the_answer_has_its_task_cancelled(serving: Serving, client: Client) -> None:
    def cancelled() -> int:
        return int(serving.server.catalogue.pool.stats()["models"]["moody"]["cancelled"])

    before = cancelled()
    slow = json.dumps({"inputs": [tensor("x", [[400_000, 0, 0, 0]])]}).encode()
    request = INFER + b"Content-Length: %d\r\n\r\n" % len(slow) + slow
    sockets = []
    end = time.monotonic() + LONG_S
    while serving.server.catalogue.pool.stats()["models"]["moody"]["queued"] < 6:  # some of which may begin before we are gone
        assert time.monotonic() < end
        sockets.append(connected(serving))
        sockets[-1].sendall(request)
        time.sleep(0.05)
    for sock in sockets:
        sock.close()
    while cancelled() - before < 2:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_requests_may_come_in_pieces_and_several_at_once(serving: Serving) -> None:
    with connected(serving) as sock:
        for byte in WHOLE:
            sock.sendall(bytes([byte]))
        chunked = INFER + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        chunked += b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (BODY[:7], BODY[7:])) + b"0\r\n\r\n"
        sock.sendall(WHOLE * 40 + chunked)
        assert read_all(sock).count(b'"data":[2.0,4.0,6.0,8.0]') == 42


def test_upgrades_are_not_taken_and_expectations_met(serving: Serving) -> None:
    upgrade = WHOLE.replace(b"Host: x\r\n", b"Host: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n")
    with connected(serving) as sock:
        sock.sendall(upgrade)
        assert b'"data":[2.0,4.0,6.0,8.0]' in sock.recv(1 << 16)
        sock.sendall(WHOLE[: -len(BODY)].replace(b"Host: x\r\n", b"Host: x\r\nExpect: 100-continue\r\nConnection: close\r\n"))
        assert sock.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(BODY)
        assert b'"data":[2.0,4.0,6.0,8.0]' in read_all(sock)


def test_a_bomb_is_refused_before_it_is_unpacked(client: Client) -> None:
    for bomb in (gzip.compress(b"\0" * (64 << 20)), gzip.compress(gzip.compress(b"\0" * (64 << 20))) * 1000):
        answer = client.ask("POST", "/v2/models/moody/infer", bomb, {"Content-Encoding": "gzip"})
        assert answer.status in (400, 413) and answer.error


def test_compressed_bodies_that_are_none_are_refused(client: Client) -> None:
    whole = gzip.compress(BODY)
    cases = [("gzip", b"abc"), ("gzip", whole[:-9]), ("gzip", b""), ("deflate", b"\xff" * 20), ("br", whole), ("gzip, gzip", whole)]
    for encoding, body in [*cases, ("gzip", whole + b"trailing")]:
        answer = client.ask("POST", "/v2/models/moody/infer", body, {"Content-Encoding": encoding})
        assert answer.status in (400, 415) and answer.error
    assert client.ask("POST", "/v2/models/moody/infer", whole + gzip.compress(b" "), {"Content-Encoding": "gzip"}).status == 200


def test_a_body_beyond_the_limit_is_refused_while_it_comes(serving: Serving) -> None:
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    with connected(serving) as sock:
        sock.sendall(INFER + b"Transfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(LIMITS.body_bytes // 0x100000 + 2):
                sock.sendall(chunk)
        except OSError:
            pass
        assert status_of(read_all(sock)) == 413


def test_who_does_not_read_does_not_keep_the_others_waiting(serving: Serving, client: Client) -> None:
    """Many large answers that nobody fetches."""
    body = json.dumps({"inputs": [tensor("x", [[1.5] * 50_000])], "parameters": {}}).encode()
    request = b"POST /v2/models/echo_FP32/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with connected(serving) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(0.5)
        try:
            for _ in range(40):
                sock.sendall(request)
        except TimeoutError:
            pass
        assert client.get("/v2").status == 200
