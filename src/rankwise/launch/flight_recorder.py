"""Fetches torch's flight recorder out of a live rank, through the window the probe opened; works while Python holds the GIL."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

_HANDLERS = ("fr_trace_json", "dump_nccl_trace_json")  # gloo's and NCCL's recorder; each torch has one or both
_TIMEOUT_S = 3.0
_MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Answer:
    """What a rank's recorders hold, and how long it took to say so."""

    dumps: list[bytes]
    seconds: float
    is_silent: bool = False  # it did not answer at all: stopped, or swapped out


def fetch_flights(sockets: dict[int, str]) -> dict[int, Answer]:
    """The recorder dumps of several ranks at once, by pid."""
    if not sockets:
        return {}
    with ThreadPoolExecutor(max_workers=min(16, len(sockets))) as pool:
        return dict(zip(sockets, pool.map(_fetch, sockets.values()), strict=True))


def _fetch(path: str) -> Answer:
    found: list[bytes] = []
    began = time.monotonic()
    for handler in _HANDLERS:
        try:
            body = _post(path, f"/handler/{handler}")
        except TimeoutError:
            return Answer(found, time.monotonic() - began, is_silent=True)
        except (OSError, ValueError):
            continue
        if body.startswith(b"{") and b'"entries"' in body:
            found.append(body)
    return Answer(found, time.monotonic() - began)


def _post(path: str, target: str) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(_TIMEOUT_S)
        link.connect(path)
        link.sendall(f"POST {target} HTTP/1.1\r\nHost: rankwise\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        parts, total = [], 0
        while total < _MAX_BYTES and (part := link.recv(1 << 20)):
            parts.append(part)
            total += len(part)
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise ValueError("no such handler")
    return body
