"""A process that imports torch for us: asked once for its versions, later perhaps for a collective or a training step."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

_STDERR_KEPT = 4000
_LINE_MAX = 1 << 20


class TorchProcess:
    """Started when first needed; ended by `close`, or by itself when we are gone."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = dict(os.environ if environ is None else environ)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._stderr = b""
        self._facts: dict[str, Any] | None = None

    def start(self) -> None:
        """Begin importing, so that the answer is there when it is asked for."""
        with self._lock:
            if self._process is None:
                # -P: a file of the user's that is called like a module must not come before it
                command = [sys.executable, "-P", "-u", "-m", "rankwise.preflight.torch_child"]
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self._environ
                )
                for pump in (self._pump_answers, self._pump_stderr):
                    threading.Thread(target=pump, args=(self._process,), daemon=True).start()

    def facts(self, timeout_s: float) -> dict[str, Any]:
        """Versions and devices as torch tells them; `error` where it cannot be imported."""
        self.start()
        with self._lock:
            if self._facts is None:
                self._facts = self._next_line(timeout_s)
            return self._facts

    def ask(self, command: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send one command, wait for its answer."""
        *_, last = self.ask_many(command, timeout_s)
        return last

    def ask_many(self, command: dict[str, Any], timeout_s: float) -> Iterator[dict[str, Any]]:
        """Send one command; answers until one is `done` or an `error`."""
        deadline = time.monotonic() + timeout_s
        facts = self.facts(timeout_s)
        if "error" in facts or self._process is None or self._process.stdin is None:
            yield {"error": str(facts.get("error", "torch was not started"))}
            return
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            yield {"error": self._how_it_ended()}
            return
        while True:
            answer = self._next_line(max(0.0, deadline - time.monotonic()))
            yield answer
            if answer.get("done") or "error" in answer:
                return

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(OSError), process:  # which waits for it and closes its pipes
                process.kill()

    def _next_line(self, timeout_s: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return {"error": f"no answer within {timeout_s:.0f} s", "timed_out": True}
        if line is None:
            self._lines.put(None)  # for the next caller
            return {"error": self._how_it_ended()}
        return line

    def _pump_answers(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            while line := process.stdout.readline(_LINE_MAX):
                with contextlib.suppress(ValueError):
                    answer = json.loads(line)
                    if isinstance(answer, dict):
                        self._lines.put(answer)
        self._lines.put(None)

    def _pump_stderr(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(process.stderr.fileno(), 65536):
                self._stderr = (self._stderr + data)[-_STDERR_KEPT:]

    def _how_it_ended(self) -> str:
        process = self._process
        code = None
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(2)
        if code is not None and code < 0:
            return f"the process was ended by signal {-code}" + (" (SIGKILL: perhaps for want of memory)" if code == -9 else "")
        last = self._stderr.decode(errors="replace").strip().splitlines()
        return (last[-1] if last else f"the process ended with code {code}")[:300]
