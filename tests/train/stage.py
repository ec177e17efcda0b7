"""Puts ranks on the stage: starts the cast once per module, hands out roles, and reads what each rank had to say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.ports import free_port

CAST = Path(__file__).with_name("cast.py")
ROOT = Path(__file__).parents[2]
# What a launcher around the tests may have set must not be taken for the ranks' own.
NOT_OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE")


@dataclass
class Part:
    """One rank on the stage."""

    id: str
    log: Path
    code: int | None = None

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @property
    def told(self) -> dict[str, Any]:
        """The last thing it had to say; empty if nothing."""
        lines = [line for line in self.text.splitlines() if line.startswith("TOLD ")]
        return json.loads(lines[-1][5:]) if lines else {}

    @property
    def finding(self) -> dict[str, Any]:
        return self.told.get("finding") or {}


class Stage:
    """The running cast; `Stage.play` sends ranks on and `Stage.end` waits for them to come off."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number, self._parts = folder, 0, {}
        env = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
        env |= {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen([sys.executable, str(CAST)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True)
        assert json.loads(self._process.stdout.readline())["ready"]
        os.set_blocking(self._process.stdout.fileno(), False)

    def play(self, act: str, env: dict[str, str | None], *, host: Any = None, **args: Any) -> Part:
        """One rank with this environment; `host` is a host of the lab."""
        self._number += 1
        part = Part(str(self._number), self._folder / f"part-{self._number}.txt")
        role = {"id": part.id, "log": str(part.log), "act": act, "env": env, "args": args}
        if host is not None:
            role |= {"namespace": host.namespace, "host": host.name}
        self._parts[part.id] = part
        self._send(role)
        return part

    def play_all(self, act: str, world_size: int, *, port: int | None = None, skip: tuple[int, ...] = (), **args: Any) -> list[Part]:
        """Ranks 0 to world_size - 1 on this machine, but for those to skip."""
        port = port or free_port()
        return [self.play(act, rank_env(rank, world_size, port), **args) for rank in range(world_size) if rank not in skip]

    def end(self, parts: list[Part], timeout_s: float = 40.0) -> list[Part]:
        deadline = time.monotonic() + timeout_s
        while any(part.code is None for part in parts) and time.monotonic() < deadline:
            self._listen()
            time.sleep(0.01)
        left = [part for part in parts if part.code is None]
        for part in left:
            self.kill(part, signal.SIGKILL)
        assert not left, "did not end:\n" + "\n".join(f"--- {part.id}\n{part.text}" for part in parts)
        return parts

    def until(self, part: Part, words: str, timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while words not in part.text:
            assert time.monotonic() < deadline and part.code is None, f"{words!r} never came:\n{part.text}"
            self._listen()
            time.sleep(0.01)

    def kill(self, part: Part, number: int) -> None:
        self._send({"kill": part.id, "signal": number})

    def _send(self, order: dict[str, Any]) -> None:
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def _listen(self) -> None:
        while line := self._process.stdout.readline():
            facts = json.loads(line)
            self._parts[facts["id"]].code = facts["code"]

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()


@contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    cast = Stage(folder)
    try:
        yield cast
    finally:
        cast.close()


def rank_env(rank: int, world_size: int, port: int, address: str = "127.0.0.1", local_rank: int | None = None) -> dict[str, str | None]:
    names = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank if local_rank is None else local_rank}
    return {**{name: str(value) for name, value in names.items()}, "MASTER_ADDR": address, "MASTER_PORT": str(port)}
