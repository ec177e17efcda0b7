"""Who listens on the port that an error message names."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rankwise.probe.port_owner import holder_of

LISTEN = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); sys.stdin.read()"

CONNECT = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); sys.stdin.read()"


@pytest.fixture
def holder() -> Iterator[tuple[int, int]]:
    """Another process that listens: its pid and its port."""
    with subprocess.Popen([sys.executable, "-S", "-c", LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.kill()


def test_the_process_is_named_in_whatever_words_torch_says_the_port(holder: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    pid, port = holder
    monkeypatch.setenv("MASTER_PORT", "1")
    listens = "The server socket has failed to listen on"
    for said in (f"failed to bind to [::]:{port} (errno: 98)", f"{listens} port: {port}", f"port {port} in use"):
        found = holder_of(said)
        assert found is not None and (found["pid"], found["port"]) == (pid, port), said
        assert "create_server" in found["command"] and found["name"]

    assert holder_of("address already in use") is None
    monkeypatch.setenv("MASTER_PORT", str(port))
    found = holder_of("address already in use")
    assert found is not None and found["pid"] == pid


def test_this_process_is_not_to_blame_for_what_it_cannot_open_itself() -> None:
    with socket.create_server(("127.0.0.1", 0)) as own:
        assert holder_of(f"port {own.getsockname()[1]}") is None


def test_a_port_that_is_only_used_has_no_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as own:
        command = [sys.executable, "-S", "-c", CONNECT, str(own.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            link, (_, port) = own.accept()
            with link:
                assert holder_of(f"port {port}") is None
                process.kill()
