"""A fault of ours never costs the user's job: whatever fails in the watcher, the job runs on to its own end, output and exit code."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from rankwise.causes import load_cause
from rankwise.findings import Finding
from rankwise.launch.faults import Faults
from tests.families import LONG, mostly_live
from tests.launch.injection import RANK
from tests.launch.jobs import environment, eventually, read_pids, write_script

Start = Callable[..., subprocess.Popen[bytes]]
PARTS = 8  # some sixty functions each, half a minute on a quiet machine with two cores
# Where these fail there is no verdict to write, or nobody to write it; the job is well all the same.
CANNOT_TELL = ("Faults.", "RunningJob.", "Watch.", "OneNode.leave", "Telling.", "OutputPump.", "_verdict", "Finding.to_dict")


@pytest.mark.live
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", [pytest.param(part, marks=LONG if part % 2 else []) for part in range(PARTS)])
def test_every_function_that_watching_calls_may_fail(tmp_path: Path, part: int) -> None:
    """The functions are found by watching a watch; see `injection.py`. Each raises a bug, a full disk, no descriptors or no memory."""
    command = [sys.executable, "-m", "tests.launch.injection", str(tmp_path), str(part), str(PARTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-2000:]
    cases = [json.loads(line) for line in done.stdout.splitlines()]

    assert len(cases) > 30  # else the job was not looked at closely
    assert sum(case["hit"] for case in cases) > 0.9 * len(cases)
    failures = {f"{case['function']} ({case['how']})": fault for case in cases if (fault := fault_of(case))}
    assert not failures


def fault_of(case: dict[str, Any]) -> str:
    if case["code"] != 3:
        return f"the exit code is {case['code']}: {case['err'][-500:]}"
    lines = ("rank 0 started", "rank 0 went on", "rank 1 started", "rank 1 went on", "the end")
    if missing := [line for line in lines if case["out"].count(line) != 1]:
        return f"of the job's output there is not one of {missing}"
    if "Traceback" in case["err"]:
        return "a traceback on the terminal"
    codes = [finding["code"] for finding in (case["verdict"] or {"findings": []})["findings"]]
    function = case["function"].partition(" ")[2]
    is_bug = "OSError" not in case["how"]  # what the system refuses may be expected there, and done without
    if is_bug and case["hit"] and "RW505" not in codes and "could not" not in case["err"] and not function.startswith(CANNOT_TELL):
        return f"nothing was said: {codes} {case['err'][-300:]}"
    return ""


@pytest.mark.parametrize("limit", mostly_live(["descriptors", "memory"]))
def test_a_watcher_at_its_limits(tmp_path: Path, start: Start, limit: str) -> None:
    """From one moment on the watcher can open no file, or have no memory."""
    rank = f'"{sys.executable}" "{write_script(tmp_path, RANK)}" "{tmp_path}/go"'
    ranks = f"RANK=0 {rank} & RANK=1 {rank} & wait; echo the end; exit 3"
    run = start("--out", tmp_path / "out", "--stall-after", "0.5", "--", "sh", "-c", ranks, cwd=tmp_path, env=environment(WORLD_SIZE="2"))
    eventually("the watcher is at work", (tmp_path / "out" / "verdict.json").exists)
    watcher = psutil.Process(run.pid)
    if limit == "descriptors":
        resource.prlimit(run.pid, resource.RLIMIT_NOFILE, (watcher.num_fds(), watcher.num_fds()))
    else:
        resource.prlimit(run.pid, resource.RLIMIT_AS, (watcher.memory_info().vms, watcher.memory_info().vms))
    looks = watcher.num_ctx_switches().voluntary
    eventually("some more looks", lambda: watcher.num_ctx_switches().voluntary > looks + 15)
    (tmp_path / "go").touch()

    assert run.wait(timeout=90) == 3
    assert "the end" in (tmp_path / "run.out").read_text()
    assert "Traceback" not in (tmp_path / "run.err").read_text()


def test_a_rank_whose_pipe_cannot_be_taken_keeps_the_one_it_has(tmp_path: Path, start: Start) -> None:
    """The watcher has no descriptor left for what a new rank would hand over: its output comes through all the same."""
    script = write_script(
        tmp_path,
        """
        import os, pathlib, subprocess, sys, time
        here = pathlib.Path(__file__).parent
        (here / f"pid-{os.getpid()}").touch()
        while not (here / "go").exists():
            time.sleep(0.05)
        code = "for i in range(5): print('line', i, flush=True)"
        sys.exit(subprocess.run([sys.executable, "-c", code], env={**os.environ, "RANK": "0"}).returncode)
        """,
    )
    run = start("--out", tmp_path / "out", "--", sys.executable, script, cwd=tmp_path)
    read_pids(tmp_path, 1)
    # A look at the job opens files for a moment: the fewest of many looks are those that stay open.
    num_fds = min(_num_fds_soon(run.pid) for _ in range(40))
    resource.prlimit(run.pid, resource.RLIMIT_NOFILE, (num_fds, num_fds))
    (tmp_path / "go").touch()

    assert run.wait(timeout=90) == 0
    assert (tmp_path / "run.out").read_text().splitlines() == [f"line {i}" for i in range(5)]


def test_without_a_watcher_the_job_runs_to_its_own_end(tmp_path: Path, start: Start) -> None:
    """A package of ours that cannot be loaded: the job has started by then."""
    (tmp_path / "broken" / "rich").mkdir(parents=True)
    (tmp_path / "broken" / "rich" / "__init__.py").write_text("raise ImportError('no such library')")
    script = write_script(tmp_path, "import sys\nprint('here')\nsys.exit(3)")
    run = start("--out", tmp_path / "out", "--", sys.executable, script, cwd=tmp_path, env=environment(PYTHONPATH=f"{tmp_path}/broken"))

    assert run.wait(timeout=60) == 3
    assert "here" in (tmp_path / "run.out").read_text()
    assert "could not watch the job (ImportError: no such library)" in (tmp_path / "run.err").read_text()


def test_what_needs_a_folder_and_has_none_becomes_the_command(tmp_path: Path, start: Start) -> None:
    """No folder for the probe anywhere: then the command runs as if we were not there."""
    (tmp_path / "sitecustomize.py").write_text(
        "import tempfile\ndef mkdtemp(*a, **k): raise OSError(30, 'Read-only')\ntempfile.mkdtemp = mkdtemp\n"
    )
    run = start("--out", tmp_path / "out", "--", "sh", "-c", "echo here; exit 3", cwd=tmp_path, env=environment(PYTHONPATH=str(tmp_path)))

    assert run.wait(timeout=60) == 3
    assert (tmp_path / "run.out").read_text() == "here\n"
    assert "cannot watch this job: [Errno 30] Read-only" in (tmp_path / "run.err").read_text()


def test_one_finding_says_what_could_not_be_seen(tmp_path: Path) -> None:
    faults = Faults(tmp_path / "rankwise.log")
    said: list[str] = []
    faults.tell_to(said.append)
    for _ in range(3):
        with faults.guard("read the stacks") as reading:
            raise OSError(28, "No space left on device")
    with faults.guard("look"):
        pass
    assert reading.has_failed

    (finding,) = faults.added_to([])
    cause = load_cause("RW505")
    assert (finding.code, finding.name, finding.severity) == (cause.code, cause.name, cause.severity)
    assert "could not read the stacks (OSError: [Errno 28] No space left on device)" in finding.summary
    assert len(said) == 1
    assert "Traceback" in (tmp_path / "rankwise.log").read_text()

    other = Finding("RW505", "partly-blind", "info", True, "could not see everything: node b stopped answering")
    first = Finding("RW201", "skipped-collective", "error", True, "rank 1")
    both = faults.added_to([first, other])
    assert [one.code for one in both] == ["RW201", "RW505"]
    assert "node b" in both[1].summary
    assert "read the stacks" in both[1].summary
    assert faults.added_to(both) == both


def test_who_wants_to_end_us_may() -> None:
    with pytest.raises(KeyboardInterrupt), Faults().guard("look"):
        raise KeyboardInterrupt


def _num_fds_soon(pid: int) -> int:
    time.sleep(0.02)
    return psutil.Process(pid).num_fds()
