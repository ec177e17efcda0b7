"""The job is followed to its end beside a watcher that may do what it likes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.launch import follow as following
from rankwise.launch.early_start import start_job
from rankwise.launch.follow import follow
from rankwise.launch.job import RunningJob
from rankwise.launch.plan import RunPlan

JOB = (sys.executable, "-S", "-c", "import time; time.sleep(1); print('the end', flush=True); raise SystemExit(3)")


class Watcher:
    """Does what a test wants of it."""

    def __init__(self, does: str) -> None:
        self.exit_code: int | None = None
        self.is_over = threading.Event()
        self.step, self.step_s = "look at the processes", time.monotonic()
        self._does, self._let_go = does, threading.Event()

    def run(self) -> None:
        if self._does == "blocks":
            self._let_go.wait(60)
        elif self._does == "fails":
            raise RuntimeError("a bug of ours")
        elif self._does == "stops it":
            self.exit_code = 70
            self.is_over.wait(60)

    def free(self) -> None:
        self._let_go.set()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[RunningJob]:
    yield start_job(RunPlan(JOB, "command", "job"), tmp_path)


@pytest.mark.parametrize("does", ["blocks", "fails", "ends at once"])
def test_the_jobs_own_end_and_code(job: RunningJob, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], does: str) -> None:
    monkeypatch.setattr(following, "_STUCK_S", 0.5)
    watcher = Watcher(does)

    assert follow(job, lambda: watcher) == 3
    assert job.is_abandoned == (does == "blocks")
    watcher.free()

    said = capfd.readouterr()
    assert "the end" in said.out
    told = {"blocks": "could not look at the processes (TimeoutError: ", "fails": "could not watch the job (RuntimeError: a bug of ours)"}
    assert told.get(does, "") in said.err


def test_a_watcher_that_cannot_be_made(job: RunningJob, capfd: pytest.CaptureFixture[str]) -> None:
    def make() -> Watcher:
        raise ImportError("no such library")

    assert follow(job, make) == 3
    assert "could not watch the job (ImportError: no such library)" in capfd.readouterr().err


def test_a_watcher_that_stops_the_job(job: RunningJob, capfd: pytest.CaptureFixture[str]) -> None:
    assert follow(job, lambda: Watcher("stops it")) == 70
    assert "the end" not in capfd.readouterr().out
    assert job.guardian.poll() == 0
    assert not job.live.exists()


def test_garbage_in_place_of_a_report_costs_no_other(tmp_path: Path) -> None:
    job = start_job(RunPlan(JOB, "command", "job"), tmp_path)
    try:
        for line in (b"{}", b"no json", b'{"event": "ended", "pid": 1, "code": 7, "t": 5}'):
            job._events.append(line)
        job._read_events(0)
        assert job.ended == {1: (7, 5)}
    finally:
        job.end()


def test_a_report_that_could_not_be_taken_is_taken_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = start_job(RunPlan(JOB, "command", "job"), tmp_path)
    try:
        job._events.append(b'{"event": "ended", "pid": 1, "code": 7, "t": 5}')
        with monkeypatch.context() as broken, pytest.raises(MemoryError):
            broken.setattr(RunningJob, "_take_event", _no_memory)
            job._read_events(0)
        job._read_events(0)
        assert job.ended[1] == (7, 5)
    finally:
        job.end()


def _no_memory(*args: object) -> None:
    raise MemoryError


def test_the_job_keeps_its_limits(tmp_path: Path, run_rankwise: object) -> None:
    """We allow ourselves more descriptors; the job has as many as it was given."""
    command = f"ulimit -Sn 512; exec {sys.executable} -m rankwise run --out {tmp_path}/out -- sh -c 'ulimit -Sn'"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=os.environ)

    assert done.stdout == "512\n"
