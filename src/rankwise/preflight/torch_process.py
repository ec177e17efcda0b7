"""Asks torch in processes of their own, one per question: its versions, later perhaps a collective or a training step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any, BinaryIO

from rankwise.meet.tasks import Task

_LONGEST_S = 3600.0  # `close` ends it before


class TorchProcess:
    """Its processes are ended by `close`, or by themselves when we are gone."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = dict(os.environ if environ is None else environ)
        self._lock = threading.Lock()
        self._facts: Task[dict[str, Any]] | None = None
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> Task[dict[str, Any]]:
        """Begin importing, so that the facts are there when they are asked for."""
        with self._lock:
            if self._facts is None:
                self._facts = Task(partial(self.ask, {"do": "facts"}, _LONGEST_S), "torch")
            return self._facts

    def facts(self, timeout_s: float) -> dict[str, Any]:
        """Versions and devices as torch tells them; `error` where it cannot be imported."""
        task = self.start()
        if not task.wait(timeout_s):
            return {"error": f"no answer within {timeout_s:.0f} s"}
        if task.error is not None:
            raise task.error
        return task.result or {}

    def ask(self, command: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """All that was answered, what came later over what came before; `error` where something went wrong, `timed_out` where it took too
        long."""
        # -P: a file of the user's that is called like a module must not come before it
        arguments = [sys.executable, "-P", "-m", "rankwise.preflight.torch_child", json.dumps(command)]
        failure: dict[str, Any] = {}
        theirs, ours = os.pipe()  # the process ends where its standard input does: with us
        # Files, not pipes: processes that a training step has started may hold these for longer than it runs.
        with os.fdopen(theirs), os.fdopen(ours, "w"), _memory_file() as out, _memory_file() as err:
            process = subprocess.Popen(arguments, stdin=theirs, stdout=out, stderr=err, env=self._environ)
            self._running.append(process)
            try:
                if process.wait(timeout_s):
                    failure = {"error": _how_it_ended(process.returncode, _content(err))}
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                failure = {"error": f"no answer within {timeout_s:.0f} s", "timed_out": True}
            answers = [json.loads(line) for line in _content(out).splitlines(keepends=True) if line.endswith(b"\n")]
        return {key: value for answer in [*answers, failure] for key, value in answer.items()}

    def close(self) -> None:
        for process in self._running:
            process.kill()


def _memory_file() -> BinaryIO:
    return os.fdopen(os.memfd_create("rankwise"), "w+b")


def _content(file: BinaryIO) -> bytes:
    file.seek(0)
    return file.read()


def _how_it_ended(code: int, err: bytes) -> str:
    if code < 0:
        return f"the process was ended by signal {-code}" + (" (SIGKILL: perhaps for want of memory)" if code == -9 else "")
    last = err.decode(errors="replace").strip().splitlines()
    return (last[-1] if last else f"the process ended with code {code}")[:300]
