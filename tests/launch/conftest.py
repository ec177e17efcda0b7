"""A launcher to send signals to, gone when its test is; and a job to observe, of which nothing runs."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launch import jobs
from tests.launch.evidence import Scene


@pytest.fixture
def start(own_temporary_folder: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`start("--out", …)` is `rankwise run --out …`, running."""
    runs: list[subprocess.Popen[bytes]] = []

    def begin(*args: object, **more: object) -> subprocess.Popen[bytes]:
        runs.append(jobs.start(*args, **more))  # type: ignore[arg-type]
        return runs[-1]

    # A shell lets what runs in the background ignore SIGINT, and `nohup` SIGHUP: what is started here would inherit that.
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    ignored = [number for number in usual if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, usual[number])
    yield begin
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    for run in runs:
        if run.poll() is None:
            run.kill()  # its guardian ends the job
        run.wait(timeout=30)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)
