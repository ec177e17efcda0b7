"""Real brokers on free loopback ports, or in a network namespace, with their files in a temporary folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port

# Redis says +PONG; RabbitMQ opens its port before it is ready to speak, and then greets whoever knows its protocol.
_IS_OPEN = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 2) as sock:
        sock.settimeout(2)
        sock.sendall(bytes.fromhex(sys.argv[3]))
        sys.exit(not sock.recv(8))
except OSError:
    sys.exit(1)
"""
_PING, _HELLO = b"PING\r\n".hex(), b"AMQP\x00\x00\x09\x01".hex()


@dataclass
class Place:
    """Where a broker runs: at this address, below this command."""

    address: str = "127.0.0.1"
    inside: tuple[str, ...] = ()

    def is_open(self, port: int, words: str) -> bool:
        """It answers to these words."""
        command = [*self.inside, sys.executable, "-S", "-c", _IS_OPEN, self.address, str(port), words]
        return subprocess.run(command).returncode == 0


class Redis:
    program = "redis-server"
    fsync = "always"

    def __init__(self, folder: Path, place: Place | None = None) -> None:
        self.folder, self.port, self.place = folder, free_port(), place or Place()
        self.url = f"redis://{self.place.address}:{self.port}/0"

    def start(self) -> None:
        command = [*self.place.inside, self.program, "--port", str(self.port), "--bind", self.place.address, "--dir", str(self.folder)]
        durable = ["--appendonly", "yes", "--appendfsync", self.fsync, "--save", ""]
        self.process = subprocess.Popen([*command, *durable, "--protected-mode", "no"], stdout=subprocess.DEVNULL)
        _wait(lambda: self.place.is_open(self.port, _PING), "redis-server does not listen")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    stop = kill


class RabbitMQ:
    program = "rabbitmq-server"

    def __init__(self, folder: Path, place: Place | None = None) -> None:
        self.folder, self.place, self.port, self._dist, self._names = folder, place or Place(), free_port(), free_port(), free_port()
        self.url = f"amqp://guest:guest@{self.place.address}:{self.port}//"
        home = folder / "home"
        home.mkdir(exist_ok=True)
        (folder / "rabbit.conf").write_text(f"listeners.tcp.1 = {self.place.address}:{self.port}\nloopback_users = none\n")
        self._env = {
            **os.environ, "HOME": str(home), "RABBITMQ_NODENAME": f"rw{self.port}@localhost", "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist), "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"), "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbit"), "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1", "ERL_EPMD_PORT": str(self._names), "ERL_EPMD_ADDRESS": "127.0.0.1",
        }  # fmt: skip
        (folder / "plugins").write_text("[].\n")

    def start(self) -> None:
        server = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # the one in PATH changes to another user
        program = server if Path(server).exists() else self.program
        with open(self.folder / "rabbit.out", "ab") as log:
            command = [*self.place.inside, program]
            self.process = subprocess.Popen(command, env=self._env, stdout=log, stderr=log, start_new_session=True)
        _wait(lambda: self.place.is_open(self.port, _HELLO), "rabbitmq-server does not listen", 90)

    def kill(self) -> None:
        """The node and what it started, in its own session."""
        os.killpg(self.process.pid, 9)
        self.process.wait()
        _wait(lambda: not self.place.is_open(self.port, _HELLO), "rabbitmq-server goes on")

    def stop(self) -> None:
        """Also Erlang's name server, which is a daemon of its own, and does not leave while it still thinks that the node is there."""
        self.kill()
        _wait(self._name_server_left, "Erlang's name server goes on")

    def _name_server_left(self) -> bool:
        epmd = [*self.place.inside, "epmd", "-port", str(self._names)]
        subprocess.run([*epmd, "-kill"], stdout=subprocess.DEVNULL, env=self._env, timeout=20)
        return subprocess.run([*epmd, "-names"], capture_output=True, env=self._env, timeout=20).returncode != 0


@contextlib.contextmanager
def running(kind: Any, place: Place | None = None) -> Iterator[Any]:
    """A broker that is gone, with its files, when the block ends. Skips the test where it is not installed."""
    if not is_installed(kind):
        pytest.skip(f"{kind.program} is not installed")
    folder = Path(tempfile.mkdtemp(prefix="rw-broker-", dir="/tmp"))
    server = kind(folder, place)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def is_installed(kind: Any) -> bool:
    return shutil.which(kind.program) is not None or Path(f"/usr/sbin/{kind.program}").exists()


def _wait(is_so: Any, what: str, limit_s: float = 30) -> None:
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.1)
