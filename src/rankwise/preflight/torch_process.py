"""Starts a child process that imports torch, and sends it commands: its versions, a collective, a training step."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from rankwise.meet.threads import ThreadTask

_STDERR_KEPT = 4000


class TorchProcess:
    """The child: started when first needed, ended by `close`, or by itself when its parent is gone."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = dict(os.environ if environ is None else environ)
        self._lock = threading.Lock()
        self._importing: ThreadTask[dict[str, Any]] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr = b""

    def start(self) -> ThreadTask[dict[str, Any]]:
        """Start the child early, so that torch is imported when it is asked."""
        with self._lock:
            if self._importing is None:
                # -P: a file of the user's that is called like a module must not come before it
                command = [sys.executable, "-P", "-u", "-m", "rankwise.preflight.torch_child"]
                pipe = subprocess.PIPE
                self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=self._environ)
                ThreadTask(partial(self._keep_stderr, self._process), "torch-stderr")
                self._importing = ThreadTask(partial(self._read, self._process, {}), "torch")
            return self._importing

    def facts(self, timeout_s: float) -> dict[str, Any]:
        """Versions and devices as torch tells them; `error` where it cannot be imported."""
        task = self.start()
        return (task.result or {}) if task.wait(timeout_s) else {"error": f"no answer within {timeout_s:.0f} s"}

    def ask(self, command: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """The child's answers merged, later ones over earlier; `error` where something went wrong, `timed_out` where none came in time."""
        deadline = time.monotonic() + timeout_s
        facts, process = self.facts(timeout_s), self._process
        if "error" in facts or process is None or process.stdin is None:
            return {"error": str(facts.get("error", "torch was not started"))}
        try:
            process.stdin.write(json.dumps(command).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            return {"error": self._how_it_ended(process)}
        answers: dict[str, Any] = {}
        if ThreadTask(partial(self._read, process, answers), "torch").wait(max(0.0, deadline - time.monotonic())):
            return answers
        return {**answers, "error": f"no answer within {timeout_s:.0f} s", "timed_out": True}

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _read(self, process: subprocess.Popen[bytes], answers: dict[str, Any]) -> dict[str, Any]:
        """Read answers until the process is done with a command; runs in a thread, as it may take any time."""
        assert process.stdout is not None
        while "done" not in answers:
            line = process.stdout.readline()
            if not line.endswith(b"\n"):
                answers["error"] = self._how_it_ended(process)
                break
            answers |= json.loads(line)
        return answers

    def _keep_stderr(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        while data := os.read(process.stderr.fileno(), 65536):
            self._stderr = (self._stderr + data)[-_STDERR_KEPT:]

    def _how_it_ended(self, process: subprocess.Popen[bytes]) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)
        code = process.returncode
        if code is not None and code < 0:
            return f"the process was ended by signal {-code}" + (" (SIGKILL: perhaps because memory ran out)" if code == -9 else "")
        last = self._stderr.decode(errors="replace").strip().splitlines()
        return (last[-1] if last else f"the process ended with code {code}")[:300]
