"""How a job is started: with the probe in its environment, in a folder of its own, and what earlier runs left there is gone."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankwise.launch import early_start
from rankwise.launch.early_start import start_job
from rankwise.launch.job import RunningJob
from rankwise.launch.plan import RunPlan

GONE = 5_000_000  # no process has a number so high


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., RunningJob]]:
    """Starts a job; what that changes in this process is put back."""
    handlers = {number: signal.getsignal(number) for number in early_start.SIGNALS}
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    jobs: list[RunningJob] = []

    def start(*command: str, **options: Any) -> RunningJob:
        jobs.append(start_job(RunPlan(command, options.pop("style", "command"), "job", **options), tmp_path / "run"))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def environment(begin: Callable[..., RunningJob], tmp_path: Path, **options: Any) -> dict[str, str]:
    """The one a job of these options finds itself in."""
    job = begin("sh", "-c", f"env > {tmp_path}/env", **options)
    while job.code is None:
        job.follow(1.0)
    assert job.code == 0
    return dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)


def test_the_probe_comes_first_and_what_the_user_had_comes_after_it(
    begin: Callable[..., RunningJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/home/ada/lib")

    env = environment(begin, tmp_path, audit="off", profile=True)

    site, own = env["PYTHONPATH"].split(os.pathsep)
    assert own == "/home/ada/lib" and (Path(site) / "sitecustomize.py").is_file() and env["RANKWISE_SITE"] == site
    assert env["RANKWISE_AUDIT"] == "light" and env["RANKWISE_PROFILE"] == "1", "a profile needs it"
    assert env["RANKWISE_LAUNCHER_PID"] == str(os.getpid())
    live = Path(env["RANKWISE_PROBE"])
    assert live.stat().st_mode & 0o777 == 0o700 and (live / "owner").read_text() == str(os.getpid())
    assert len(env["RANKWISE_SINK"]) < 100, "the path of a unix socket may not be longer"


@pytest.mark.parametrize(("own", "may_restart", "wanted"), [(None, True, "1"), ("0", True, "0"), (None, False, None)])
def test_restarts_get_a_store_of_their_own_unless_the_user_says_otherwise(
    begin: Callable[..., RunningJob],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: str | None,
    may_restart: bool,
    wanted: str | None,
) -> None:
    name = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    monkeypatch.delenv(name, raising=False)
    if own is not None:
        monkeypatch.setenv(name, own)

    assert environment(begin, tmp_path, may_restart=may_restart).get(name) == wanted
    log = tmp_path / "run/logs/rankwise.log"
    assert (log.exists() and f"set {name}=1" in log.read_text()) == (wanted == "1")


def test_what_runs_that_were_killed_left_behind_goes_and_nobody_elses(
    begin: Callable[..., RunningJob], own_temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)  # look at TMPDIR again
    folders = {name: own_temporary_folder / f"rankwise-{name}" for name in ("left", "living", "without-owner", "damaged")}
    for folder in folders.values():
        folder.mkdir()
    for name, owner in (("left", str(GONE)), ("living", str(os.getpid())), ("damaged", "x")):
        (folders[name] / "owner").write_text(owner)

    job = begin("true")

    assert job.live.parent == own_temporary_folder and job.live.name.startswith("rankwise-")
    assert [name for name, folder in folders.items() if not folder.exists()] == ["left"]
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)


def test_the_users_signals_are_noted_from_the_start_and_what_was_ignored_stays_so(begin: Callable[..., RunningJob]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    job = begin(sys.executable, "-S", "-c", "", style="torchrun")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), number)

    assert job.asked == [signal.SIGINT, signal.SIGTERM], "torchrun ends on SIGINT in the background too"
