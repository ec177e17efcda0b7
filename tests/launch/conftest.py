"""A launcher to send signals to, gone when its test is."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launch import jobs


@pytest.fixture
def start(own_temporary_folder: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`start("--out", …)` is `rankwise run --out …`, running."""
    runs: list[subprocess.Popen[bytes]] = []

    def begin(*args: object, **more: object) -> subprocess.Popen[bytes]:
        runs.append(jobs.start(*args, **more))  # type: ignore[arg-type]
        return runs[-1]

    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:  # as a shell has it for what runs in the background: what is started here would inherit that
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield begin
    signal.signal(signal.SIGINT, before)
    for run in runs:
        if run.poll() is None:
            run.kill()  # its guardian ends the job
        run.wait(timeout=30)
