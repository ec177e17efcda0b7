"""A running job as its guardian reports it: which code it ends with, and what becomes of the user's signals."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankwise.launch import job as job_module
from rankwise.launch.job import RunningJob

Report = Callable[..., None]
MAIN = 7_000_001  # no process has it


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RunningJob, Report]]:
    """A job without a guardian, and how to report events to it as one byte stream."""
    status, reports = os.pipe()
    made: Any = RunningJob(Path(), None, None, -1, status, 0, [], None)  # type: ignore[arg-type]

    def report(*events: dict[str, Any], torn: bytes = b"") -> None:
        os.write(reports, b"".join(json.dumps(event).encode() + b"\n" for event in events) + torn)
        made.follow(1.0)

    yield made, report
    os.close(status)
    os.close(reports)


def started(pid: int = MAIN) -> dict[str, Any]:
    return {"event": "started", "pid": pid}


def ended(pid: int, code: int) -> dict[str, Any]:
    return {"event": "ended", "pid": pid, "code": code, "t": 5}


@pytest.mark.parametrize(("code", "wanted"), [(0, 0), (3, 3), (-9, 137), (-15, 143)])
def test_the_commands_code_is_what_a_shell_would_say(job: tuple[RunningJob, Report], code: int, wanted: int) -> None:
    running, report = job

    report(started(), ended(MAIN + 1, 1))
    assert running.code is None
    report(ended(MAIN, code))

    assert running.code == wanted
    assert running.ended == {MAIN + 1: (1, 5), MAIN: (code, 5)}


def test_the_first_end_of_the_command_counts(job: tuple[RunningJob, Report]) -> None:
    running, report = job

    report(started(), ended(MAIN, 3), ended(MAIN, 0))

    assert running.code == 3


def test_a_command_that_is_not_there_says_why(job: tuple[RunningJob, Report]) -> None:
    running, report = job

    report({"event": "not_started", "error": "FileNotFoundError no such file: x"})

    assert (running.code, running.not_started) == (127, "no such file: x")


def test_a_report_may_come_in_pieces_and_one_that_is_nonsense_costs_no_other(job: tuple[RunningJob, Report]) -> None:
    running, report = job

    report({"event": "ended"}, {"no": "event"}, started(), torn=b'[1]\n{"event": "ended", "pid": %d,' % MAIN)
    assert running.code is None
    report(torn=b' "code": 4, "t": 5}\n')

    assert running.code == 4


@pytest.mark.parametrize(("events", "wanted"), [([], 1), ([started(), ended(MAIN, 0)], 0)])
def test_where_the_guardian_is_gone_a_code_that_is_known_stays(events: list[Any], wanted: int) -> None:
    status, reports = os.pipe()
    running = RunningJob(Path(), None, None, -1, status, 0, [], None)  # type: ignore[arg-type]
    os.write(reports, b"".join(json.dumps(event).encode() + b"\n" for event in events) or b"\n")
    running.follow(1.0)
    os.close(reports)

    running.follow(1.0)
    os.close(status)

    assert running.code == wanted


def test_the_first_signal_goes_to_the_command_and_the_second_ends_all(job: tuple[RunningJob, Report], monkeypatch: Any) -> None:
    running, report = job
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda pid, number: sent.append((pid, number)))
    running.asked.append(signal.SIGINT)
    report({"event": "other"})
    assert sent == []  # there is no command yet

    report(started())
    report({"event": "other"})
    assert sent == [(MAIN, signal.SIGINT)] and running.code is None
    running.asked.append(signal.SIGTERM)
    report({"event": "other"})

    assert sent == [(MAIN, signal.SIGINT)]
    assert running.code == 130


def test_a_command_that_takes_its_time_is_ended(job: tuple[RunningJob, Report], monkeypatch: pytest.MonkeyPatch) -> None:
    running, report = job
    monkeypatch.setattr(os, "killpg", lambda pid, number: None)
    monkeypatch.setattr(job_module, "_PATIENCE_S", -1.0)
    running.asked.append(signal.SIGTERM)

    report(started())
    assert running.code is None
    report({"event": "other"})

    assert running.code == 143


def test_what_ended_by_itself_keeps_its_code(job: tuple[RunningJob, Report], monkeypatch: pytest.MonkeyPatch) -> None:
    running, report = job
    monkeypatch.setattr(os, "killpg", lambda pid, number: None)
    running.asked += [signal.SIGTERM, signal.SIGTERM]

    report(started(), ended(MAIN, 5))
    report({"event": "other"})

    assert running.code == 5
