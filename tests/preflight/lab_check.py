"""`rankwise check` on every host of a lab at once, as a user would start it there."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab.hosts import Host

PORT = 29611
NETWORK = "names,ports,links"


@dataclass
class Told:
    """What one host's report says."""

    code: int
    report: dict[str, Any]
    stderr: str
    seconds: float

    @property
    def codes(self) -> list[str]:
        return [finding["code"] for finding in self.report.get("findings", ())]

    def finding(self, code: str) -> dict[str, Any]:
        """The first finding of this code; fails with all findings where there is none."""
        found = next((finding for finding in self.report["findings"] if finding["code"] == code), None)
        assert found is not None, f"no {code} among {[(f['code'], f['summary']) for f in self.report['findings']]}\n{self.stderr[-2000:]}"
        return found

    def hosts_of(self, code: str) -> set[str]:
        return {place["host"] for place in self.finding(code)["culprits"]}

    def result(self, check: str) -> dict[str, Any]:
        return next(result for result in self.report["results"] if result["check"] == check)


@dataclass
class Start:
    """How one host starts its check, where it differs from the others."""

    options: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[str] = ()  # words before the command
    delay_s: float = 0.0
    is_absent: bool = False


def check_on(hosts: list[Host], *options: str, only: str = NETWORK, timeout_s: float = 100, **starts: Start) -> dict[str, Told]:
    """Start on all hosts; `a=Start(…)` is for node-a. Options given there win over the usual ones."""
    running: dict[str, tuple[subprocess.Popen[bytes], Path, Path]] = {}
    began = time.monotonic()
    # Files, not pipes: nobody reads while the others run.
    with tempfile.TemporaryDirectory() as folder:
        order = sorted(enumerate(hosts), key=lambda pair: starts.get(pair[1].name[-1], Start()).delay_s)
        for node, host in order:
            start = starts.get(host.name[-1], Start())
            if start.is_absent:
                continue
            time.sleep(max(0.0, began + start.delay_s - time.monotonic()))
            usual = ["--nnodes", str(len(hosts)), "--node-rank", str(node), "--master-addr", "node-a", "--master-port", str(PORT)]
            out, err = Path(folder) / f"{host.name}.out", Path(folder) / f"{host.name}.err"
            command = [sys.executable, "-m", "rankwise", "check", "--json", "--only", only, *usual, *options, *start.options]
            with out.open("wb") as output, err.open("wb") as errors:
                inside = ["sh", "-c", 'err="$0"; exec "$@" 2> "$err"', str(err)]
                del errors
                process = host.start([*inside, *start.before, *command], env=dict(start.env), output=output, cwd=folder)
            running[host.name] = (process, out, err)
        told = {}
        for name, (process, out, err) in running.items():
            code = process.wait(max(1.0, began + timeout_s - time.monotonic()))
            text, errors_text = out.read_text(), err.read_text()
            assert "Traceback" not in errors_text, f"{name}: {errors_text}"
            assert text.startswith("{"), f"{name}: {text[:500]}\n{errors_text[-3000:]}"
            told[name] = Told(code, json.loads(text), errors_text, time.monotonic() - began)
    for host in hosts:
        host.processes.clear()
    return told
