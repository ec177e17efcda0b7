"""Real brokers on free loopback ports, with their files in a temporary folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def is_open(port: int) -> bool:
    with socket.socket() as sock:
        sock.settimeout(0.5)
        return sock.connect_ex(("127.0.0.1", port)) == 0


class Redis:
    program = "redis-server"

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = [self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--appendonly", "yes"]
        self.process = subprocess.Popen([*command, "--appendfsync", "always", "--save", ""], stdout=subprocess.DEVNULL)
        _wait(lambda: is_open(self.port), "redis-server does not listen")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    stop = kill


class RabbitMQ:
    program = "rabbitmq-server"

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self._dist, self._names = folder, free_port(), free_port(), free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}//"
        home = folder / "home"
        home.mkdir(exist_ok=True)
        (folder / "rabbit.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{self.port}\n")
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
            self.process = subprocess.Popen([program], env=self._env, stdout=log, stderr=log, start_new_session=True)
        _wait(lambda: is_open(self.port) and _greets(self.port), "rabbitmq-server does not listen", 90)

    def kill(self) -> None:
        """The node and what it started, in its own session."""
        os.killpg(self.process.pid, 9)
        self.process.wait()
        _wait(lambda: not is_open(self.port), "rabbitmq-server goes on")

    def stop(self) -> None:
        """Also Erlang's name server, which is a daemon of its own, and does not leave while it still thinks that the node is there."""
        self.kill()
        _wait(self._name_server_left, "Erlang's name server goes on")

    def _name_server_left(self) -> bool:
        subprocess.run(["epmd", "-port", str(self._names), "-kill"], stdout=subprocess.DEVNULL, env=self._env, timeout=20)
        return not is_open(self._names)


def is_installed(kind: Any) -> bool:
    return shutil.which(kind.program) is not None or Path(f"/usr/sbin/{kind.program}").exists()


def _greets(port: int) -> bool:
    """RabbitMQ opens its port before it is ready to speak."""
    try:
        with socket.create_connection(("127.0.0.1", port), 2) as sock:
            sock.settimeout(2)
            sock.sendall(b"AMQP\x00\x00\x09\x01")
            return bool(sock.recv(8))
    except OSError:
        return False


def _wait(is_so: Any, what: str, limit_s: float = 30) -> None:
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.1)
