"""The process between launcher and job: it reports every end, orphans' too, and leaves nothing, whatever becomes of the launcher."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rankwise.launch import guardian
from tests.launch.jobs import eventually


class Guarded:
    """A command under a guardian, and the launcher's end of the pipes."""

    def __init__(self, folder: Path, *command: str, **options: Any) -> None:
        theirs, self.control = os.pipe()
        self.status, status = os.pipe()
        words = [sys.executable, "-I", "-S", guardian.__file__, str(theirs), str(status), str(folder), *command]
        self.process = subprocess.Popen(words, pass_fds=(theirs, status), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
        for fd in (theirs, status):
            os.close(fd)
        self._events = os.fdopen(self.status)

    def event(self) -> dict[str, Any]:
        """The next thing it reports; empty once it is gone."""
        return dict(json.loads(self._events.readline() or "{}"))

    def close(self) -> None:
        if self.control:
            os.close(self.control)
        self.control = 0

    def __exit__(self, *_: object) -> None:
        self.close()
        self.process.communicate(timeout=30)
        self._events.close()


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Callable[..., Guarded]]:
    started: list[Guarded] = []
    (tmp_path / "live").mkdir()

    def begin(*command: str, **options: Any) -> Guarded:
        started.append(Guarded(tmp_path / "live", *command, **options))
        return started[-1]

    yield begin
    for one in started:
        one.__exit__()


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -9 $$", -9)])
def test_the_end_of_the_command_is_reported_with_its_code(guard: Callable[..., Guarded], tmp_path: Path, script: str, code: int) -> None:
    one = guard("sh", "-c", f"echo said; {script}")

    pid = one.event()["pid"]
    ended = one.event()
    assert (ended["event"], ended["pid"], ended["code"]) == ("ended", pid, code)
    one.close()
    said, _ = one.process.communicate(timeout=30)
    assert (said, one.process.returncode, (tmp_path / "live").exists()) == (b"said\n", 0, False)


def test_a_command_that_is_not_there_is_no_job(guard: Callable[..., Guarded]) -> None:
    one = guard("/no/such/command")

    assert one.event() == {"event": "not_started", "error": "2 No such file or directory"}
    assert one.process.wait(timeout=30) == 127


def test_orphans_are_adopted_and_go_when_the_launcher_does(guard: Callable[..., Guarded], tmp_path: Path) -> None:
    """The command leaves a process of another session behind, which ignores the polite way."""
    path = tmp_path / "pid"
    one = guard("sh", "-c", f"setsid sh -c 'trap \"\" TERM; echo $$ > {path}; while :; do sleep 0.05; done' & exit 0")
    eventually("it runs", lambda: path.exists() and path.read_text().endswith("\n"))
    orphan = psutil.Process(int(path.read_text()))
    events = [one.event(), one.event()]
    eventually("it is adopted", lambda: orphan.ppid() == one.process.pid)

    one.close()

    assert [event["event"] for event in events] == ["started", "ended"]
    assert one.process.wait(timeout=30) == 0
    assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE  # until the system's first process collects it


def test_a_word_ends_what_is_left_politely_and_says_so(guard: Callable[..., Guarded], tmp_path: Path) -> None:
    one = guard("sh", "-c", f"trap 'echo asked > {tmp_path}/asked; exit 7' TERM; echo > {tmp_path}/up; while :; do sleep 0.01; done")
    eventually("it runs", lambda: (tmp_path / "up").exists())

    os.write(one.control, b"20.0\n")

    events = [one.event()["event"]]
    while events[-1] != "all_gone":  # the last end may be reported behind it
        events.append(one.event()["event"])
    assert events[0] == "started" and (tmp_path / "asked").exists()
    assert one.process.poll() is None, "it stays until the launcher goes"


def test_signals_meant_for_the_launcher_do_not_end_it_and_the_job_has_its_own(guard: Callable[..., Guarded], tmp_path: Path) -> None:
    def ignore_hup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # ignored, like SIGINT, where a shell starts the tests with `&`

    one = guard("sh", "-c", "grep SigIgn /proc/self/status; sleep 60", preexec_fn=ignore_hup)
    job = psutil.Process(one.event()["pid"])
    assert one.process.stdout is not None
    ignored = int(one.process.stdout.readline().split()[1], 16)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        one.process.send_signal(number)

    assert ignored >> (signal.SIGHUP - 1) & 1, "what was ignored stays so"
    assert not any(ignored >> (number - 1) & 1 for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGPIPE))
    assert os.getsid(job.pid) != os.getsid(0) and os.getpgid(job.pid) == job.pid
    job.kill()
    ended = one.event()
    while ended["pid"] != job.pid:
        ended = one.event()
    assert ended["code"] == -9 and one.process.poll() is None
