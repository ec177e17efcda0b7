"""Fetching flight recorders: of several ranks at once, of those that answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankwise.launch import flight_recorder
from rankwise.launch.flight_recorder import fetch_flights

DUMP = b'{"version": "2.5", "entries": []}'


@pytest.fixture
def window(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """`window(answers)`: the window of a rank, which answers each handler so, and the others with 404; None: not at all."""
    listeners: list[socket.socket] = []
    asked: list[socket.socket] = []

    def serve(listener: socket.socket, answers: dict[str, bytes] | None) -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            asked.append(link)
            if answers is None:
                continue
            handler = link.recv(4096).split()[1].decode().removeprefix("/handler/")
            head = b"HTTP/1.1 200 OK" if handler in answers else b"HTTP/1.1 404 Not Found"
            body = answers.get(handler, b"")
            link.sendall(head + b"\r\n\r\n" + body[:7])
            link.sendall(body[7:])
            link.close()

    def begin(answers: dict[str, bytes] | None) -> str:
        path = str(tmp_path / f"s-{len(listeners)}")
        listeners.append(socket.socket(socket.AF_UNIX))
        listeners[-1].bind(path)
        listeners[-1].listen()
        threading.Thread(target=serve, args=(listeners[-1], answers), daemon=True).start()
        return path

    yield begin
    for one in (*listeners, *asked):
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        one.close()


def test_each_rank_gives_the_dumps_it_has(window: Callable[..., str], tmp_path: Path) -> None:
    both = window({"fr_trace_json": DUMP, "dump_nccl_trace_json": DUMP})
    one = window({"fr_trace_json": DUMP})
    other = window({"fr_trace_json": b'{"error": "no recorder"}'})

    found = fetch_flights({1: both, 2: one, 3: other, 4: str(tmp_path / "gone")})

    assert {pid: answer.dumps for pid, answer in found.items()} == {1: [DUMP, DUMP], 2: [DUMP], 3: [], 4: []}
    assert not any(answer.is_silent for answer in found.values())
    assert fetch_flights({}) == {}


def test_a_rank_that_says_nothing_is_told_from_one_that_is_not_there(window: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_recorder, "_TIMEOUT_S", 0.05)

    answer = fetch_flights({1: window(None)})[1]

    assert answer.is_silent and answer.seconds >= 0.05 and answer.dumps == []
