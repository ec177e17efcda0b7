"""When the launcher itself is in trouble (no disk, no folder, no guardian) the job still runs to its own end and code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.families import mostly_live
from tests.launch.jobs import alive, eventually, read_pids, write_script

Start = Callable[..., subprocess.Popen[bytes]]
# Says it is there, waits until it may go on, then ends with a code of its own.
PATIENT = """
import os, pathlib, sys, time
here = pathlib.Path(__file__).parent
print("x" * 300_000, flush=True)
(here / f"pid-{os.getpid()}").touch()
while not (here / "go").exists():
    time.sleep(0.05)
print("went on", flush=True)
sys.exit(3)
"""


def test_a_full_disk_costs_the_evidence_and_not_the_job(tmp_path: Path) -> None:
    script = write_script(tmp_path, PATIENT)
    (tmp_path / "go").touch()
    (tmp_path / "small").mkdir()
    mount = f'mount -t tmpfs -o size=16k none "{tmp_path}/small" && exec "$@"'
    run = [sys.executable, "-m", "rankwise", "run", "--out", f"{tmp_path}/small/out", "--", sys.executable, str(script)]
    if subprocess.run(["unshare", "-m", "sh", "-c", mount, "sh", "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system in a namespace of its own")

    done = subprocess.run(["unshare", "-m", "sh", "-c", mount, "sh", *run], capture_output=True, text=True, timeout=120)

    assert done.returncode == 3, done.stderr
    assert "went on" in done.stdout
    assert "Traceback" not in done.stderr
    assert f"could not write verdict.json to {tmp_path}/small/out (OSError: [Errno 28] No space left on device)" in done.stderr


def test_a_working_folder_that_was_removed(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    run = f'rmdir "{tmp_path}/gone"; exec {sys.executable} -m rankwise run --out "{tmp_path}/out" -- true'
    done = subprocess.run(["bash", "-c", run], capture_output=True, text=True, timeout=90, cwd=tmp_path / "gone")

    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "verdict.json").read_text())["findings"] == []


@pytest.mark.parametrize("closed", mostly_live(["<&- >&- 2>&-", "<&-", ">&-", "2>&-"], 2))
def test_closed_streams(tmp_path: Path, closed: str) -> None:
    """As a daemon starts its children: no descriptor of ours may take the place of the job's output."""
    job = "echo to stdout; echo to stderr >&2; exit 3"
    run = f"exec {sys.executable} -m rankwise run --out {tmp_path}/out -- sh -c '{job}' {closed}"
    done = subprocess.run(["bash", "-c", run], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90)

    assert done.returncode == 3, done.stderr
    assert sorted((tmp_path / "out" / "logs" / "launcher.log").read_text().splitlines()) == ["to stderr", "to stdout"]
    assert done.stdout == ("" if ">&-" in closed.split() else "to stdout\n")
    assert ("to stderr" in done.stderr) == ("2>&-" not in closed)


def test_the_probes_folder_taken_away(tmp_path: Path, start: Start) -> None:
    """A cleaner of /tmp: the job is not disturbed, and the launcher does not stumble."""
    script = write_script(tmp_path, PATIENT)
    run = start("--out", tmp_path / "out", "--", sys.executable, script, cwd=tmp_path, env={**os.environ, "RANK": "0", "WORLD_SIZE": "1"})
    read_pids(tmp_path, 1)
    (live,) = Path(os.environ["TMPDIR"]).glob("rankwise-*")
    shutil.rmtree(live)
    (tmp_path / "go").touch()

    assert run.wait(timeout=60) == 3
    assert "Traceback" not in (tmp_path / "run.err").read_text()
    assert json.loads((tmp_path / "out" / "verdict.json").read_text())["exit_code"] == 3


def test_the_run_folder_taken_away(tmp_path: Path, start: Start) -> None:
    script = write_script(tmp_path, PATIENT)
    run = start("--out", tmp_path / "out", "--", sys.executable, script, cwd=tmp_path)
    read_pids(tmp_path, 1)
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "go").touch()

    assert run.wait(timeout=60) == 3
    assert "Traceback" not in (tmp_path / "run.err").read_text()


def test_without_its_guardian_the_launcher_still_leaves_nothing(tmp_path: Path, start: Start) -> None:
    """Somebody kills the guardian: the launcher ends, and the job with it."""
    script = write_script(tmp_path, PATIENT)
    run = start("--out", tmp_path / "out", "--", sys.executable, script, cwd=tmp_path)
    pids = read_pids(tmp_path, 1)
    guardian = psutil.Process(pids[0]).parent()
    assert guardian is not None
    guardian.send_signal(signal.SIGKILL)

    assert run.wait(timeout=60) != 0
    eventually("the job is gone", lambda: not alive(pids), 30)
    assert "Traceback" not in (tmp_path / "run.err").read_text()


def test_many_short_lived_processes(tmp_path: Path, start: Start) -> None:
    """A job that starts hundreds of helpers, each gone before it can be looked at."""
    script = write_script(
        tmp_path,
        """
        import os, subprocess, sys
        for i in range(400):
            if os.fork() == 0:
                if os.fork() == 0:  # an orphan at once
                    os._exit(i % 7)
                os._exit(0)
        while True:
            try:
                os.wait()
            except ChildProcessError:
                break
        print(subprocess.run(["echo", "done"], capture_output=True).stdout)
        """,
    )
    run = start("--out", tmp_path / "out", "--", sys.executable, script, cwd=tmp_path)

    assert run.wait(timeout=90) == 0
    assert "b'done\\n'" in (tmp_path / "run.out").read_text()
    assert not (tmp_path / "run.err").read_text()
