"""The loop of `rankwise run`: look at the job, decide, tell, act, and leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from rankwise.diagnose import diagnose
from rankwise.errors import UsageError
from rankwise.evidence.records import JobEvidence
from rankwise.findings import Finding
from rankwise.launch.collect import Collector
from rankwise.launch.nodes import join_nodes
from rankwise.launch.observe import Observer
from rankwise.launch.output import OutputPump
from rankwise.launch.pace import Pace
from rankwise.launch.parcels import Verdict
from rankwise.launch.plan import RunPlan
from rankwise.launch.start import StartedJob
from rankwise.launch.starting import find_seats, starting_text

HUNG_EXIT_CODE = 70
_TICK_S = 0.2
_LOOK_EVERY_NS = 1_000_000_000
_END_GRACE_S = 5.0
_CRASH_GRACE_S = 3.5


@dataclass(frozen=True)
class Report:
    """What the watcher has to say at one moment; `cli` and `report` turn it into text and files."""

    outcome: str
    exit_code: int | None
    findings: list[Finding]
    job: JobEvidence
    running_s: float
    stuck_s: float | None
    is_final: bool


Teller = Callable[[Report, OutputPump], None]


class Watch:
    """One job on this host, from start to end."""

    def __init__(self, plan: RunPlan, folder: Path, job: StartedJob, tell: Teller) -> None:
        self._plan, self._folder, self._job, self._tell = plan, folder, job, tell
        self._output, self._started_ns = job.output, job.started_ns
        self._code: int | None = None
        self._main_pid = 0
        self._asked = job.asked
        self._told: list[Finding] = []
        self._told_job: JobEvidence | None = None
        self._verdict_at: float | None = None
        self._events = b""
        self._looked_ns = 0
        self._waiting = ""

    def run(self) -> int:
        """Run the job to its end and return the exit code of `rankwise run`."""
        self._join()
        try:
            while self._code is None:
                self._read_events(_TICK_S)
                self._pass_on_signals()
                self._look()
            return self._finish()
        finally:
            self._clean_up()

    def _join(self) -> None:
        """Look for the first time, and find the other nodes."""
        self._observer = Observer(self._job.live, self._job.guardian.pid, os.uname().nodename)
        self._observer.said_last = self._output.said_last
        self._pace = Pace(self._plan.stall_after_s)
        self._collector = Collector(self._plan, self._observer, self._job.live, self._folder / "logs", self._started_ns)
        self._nodes = join_nodes(self._plan, self._observer, self._collect)

    # -- following ------------------------------------------------------------------------------------------------------------

    def _read_events(self, timeout_s: float) -> None:
        """What the guardian reports: who ended, and when the command itself did."""
        import select

        ready, _, _ = select.select([self._job.status], [], [], timeout_s)
        if not ready:
            return
        data = os.read(self._job.status, 1 << 16)
        if not data:
            self._code = self._code if self._code is not None else 1
            return
        *lines, self._events = (self._events + data).split(b"\n")
        for line in lines:
            self._take_event(json.loads(line))

    def _take_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "started":
            self._main_pid = event["pid"]
        elif event["event"] == "not_started":
            raise UsageError(
                f"cannot start {self._plan.command[0]!r}: {event['error'].split(' ', 1)[-1]}",
                next=("check the command after --",),
            )
        elif event["event"] == "ended":
            self._observer.ended[event["pid"]] = (event["code"], event["t"])
            if event["pid"] == self._main_pid:
                self._code = event["code"] if event["code"] >= 0 else 128 - event["code"]

    def _look(self) -> None:
        now = time.time_ns()
        if now - self._looked_ns < _LOOK_EVERY_NS:
            self._observer.glance(now)
        else:
            self._looked_ns = now
            self._observer.look(now)
            for rank, pids in self._observer.rank_pids().items():
                for pid in pids:
                    self._output.name_rank(pid, rank)
        self._pace.note(self._observer, now)
        if self._output.shows_status:
            starting = starting_text(find_seats(self._observer, self._nodes.elsewhere()), now)
            self._output.status(self._pace.status_line(self._observer, self._started_ns, now, self._waiting, starting))
        self._nodes.turn()
        if self._asked:  # ranks that end because the user ended the job are no finding
            return
        depth = self._pace.wanted_depth(self._observer, now) or self._nodes.wanted_depth()
        if depth and self._nodes.can_ask():
            self._nodes.ask(self._collect(depth), depth)
        if (agreed := self._nodes.stop_order()) is not None:
            self._stop_hung(agreed)
        elif (job := self._nodes.whole_job()) is not None:
            self._judge(job, now)

    def _collect(self, depth: str) -> JobEvidence:
        return self._collector.collect(depth, time.time_ns(), self._pace.stall_after_s)

    def _judge(self, job: JobEvidence, now: int) -> None:
        """Decide, tell what is new, and stop a job that cannot go on."""
        every = diagnose(job)
        self._waiting = every[0].summary if every else ""
        findings = self._worth_telling(every, now)
        stuck_s = self._pace.quiet_s(now)
        deadlocked = bool(findings) and findings[0].deadlock and findings[0].severity == "error"
        crashed = deadlocked and findings[0].code.startswith("RW4")
        # A launcher that sees its rank die ends the others by itself, in its own way and with its own exit code: leave it the time.
        if deadlocked and not self._pace.is_confirmed(_essence(findings), now, _CRASH_GRACE_S if crashed else 1.0):
            return
        if _essence(findings) != _essence(self._told):
            self._told, self._told_job = findings, job
            outcome = "hung" if deadlocked else "stalled" if any(f.severity != "info" for f in findings) else "running"
            self._tell(Report(outcome, None, findings, job, self._running_s(), stuck_s, False), self._output)
        if deadlocked and self._plan.on_stall == "abort":
            self._stop_hung(self._nodes.publish(Verdict("hung", findings, job, stuck_s)))

    def _worth_telling(self, findings: list[Finding], now: int) -> list[Finding]:
        """Suspicions only after `stall_after`; what is proven at once; mere notes only when something else is told."""
        patient = (
            self._pace.quiet_s(now) < self._pace.stall_after_s and self._pace.longest_wait_s(self._observer, now) < self._pace.stall_after_s
        )
        kept = [f for f in findings if ((f.certain or f.deadlock) and f.severity == "error") or not patient]
        return kept if any(f.code not in ("RW504", "RW505", "RW506") for f in kept) else []

    def _stop_hung(self, agreed: Verdict) -> None:
        self._code = HUNG_EXIT_CODE
        self._final = Report("hung", HUNG_EXIT_CODE, agreed.findings, agreed.job, self._running_s(), agreed.stuck_s, True)

    # -- ending ---------------------------------------------------------------------------------------------------------------

    def _finish(self) -> int:
        """The command has ended, or is to be ended: gather what is left, say the last word."""
        assert self._code is not None
        if self._code == HUNG_EXIT_CODE and hasattr(self, "_final"):
            report = self._final
            self._output.mute()
            self._end_all(0.5)
        else:
            now = time.time_ns()
            self._observer.look(now)
            self._end_all(_END_GRACE_S)
            self._observer.look(time.time_ns())
            job = self._collector.collect("end", time.time_ns(), self._pace.stall_after_s, exit_code=self._code)
            job = self._nodes.last_job(job, is_hurried=bool(self._asked))
            findings = diagnose(job)
            outcome = "completed" if not job.exit_code else "crashed"
            if self._asked:  # the user ended the job: what was seen until then is the verdict, not that the ranks were ended
                findings, job = self._told, self._told_job or job
                outcome = "stalled" if any(f.severity != "info" for f in findings) else outcome
            if outcome == "completed":
                findings = [
                    _as_seen_in_success(f) for f in findings if f.severity == "info" or (f.certain and f.code[:3] in ("RW2", "RW4"))
                ]
            agreed = self._nodes.publish(Verdict(outcome, findings, job))
            self._code = HUNG_EXIT_CODE if agreed.outcome == "hung" else self._code
            report = Report(agreed.outcome, self._code, agreed.findings, agreed.job, self._running_s(), self._pace.quiet_s(now), True)
        for rank in self._observer.rank_pids():
            journals = [self._observer.journals[pid] for pid in self._observer.players_of(rank)]
            self._output.complete_log(rank, [file for journal in journals for file in (journal.out, journal.err) if file])
        self._output.stop()
        self._tell(report, self._output)
        return self._code

    def _end_all(self, grace_s: float) -> None:
        with contextlib.suppress(OSError):
            os.write(self._job.control, f"{grace_s}\n".encode())
        deadline = time.monotonic() + grace_s + 25
        while time.monotonic() < deadline and self._job.guardian.poll() is None:
            before = self._code
            with contextlib.suppress(OSError):
                import select

                if select.select([self._job.status], [], [], 0.2)[0]:
                    data = os.read(self._job.status, 1 << 16)
                    *lines, self._events = (self._events + data).split(b"\n")
                    events = [json.loads(line) for line in lines]
                    for event in events:
                        if event["event"] == "ended":
                            self._observer.ended[event["pid"]] = (event["code"], event["t"])
                    if not data or any(event["event"] == "all_gone" for event in events):
                        break
            self._code = before

    def _clean_up(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._job.control)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._job.guardian.wait(timeout=30)
        with contextlib.suppress(OSError):
            os.close(self._job.status)
        self._nodes.leave()
        if self._job.guardian.poll() != 0:
            _kill_children()
        self._output.status("")
        shutil.rmtree(self._job.live, ignore_errors=True)

    # -- signals --------------------------------------------------------------------------------------------------------------

    def _pass_on_signals(self) -> None:
        """The first signal goes to the command, which may end in its own way; the second, or 10 s later, ends everything."""
        if not self._asked or not self._main_pid:
            return
        if self._verdict_at is None:
            self._verdict_at = time.monotonic()
            with contextlib.suppress(OSError):
                os.killpg(self._main_pid, self._asked[0])
        elif len(self._asked) > 1 or time.monotonic() - self._verdict_at > 10:
            self._code = 128 + self._asked[0]

    def _running_s(self) -> float:
        return (time.time_ns() - self._started_ns) / 1e9


def _as_seen_in_success(finding: Finding) -> Finding:
    """A launcher that reports success although a rank crashed may mean it: worth saying, not an error."""
    return finding.with_severity("warning") if finding.code.startswith("RW4") else finding


def _kill_children() -> None:
    """In the guardian's place: until nothing is left that was adopted from it."""
    deadline = time.monotonic() + 20
    while (children := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        for child in children:
            with contextlib.suppress(psutil.Error):
                child.kill()
        psutil.wait_procs(children, timeout=1.0)


def _essence(findings: list[Finding]) -> list[tuple[Any, ...]]:
    """What makes findings the same as before: cause, culprits and certainty, not the seconds in the text."""
    return [(f.code, f.certain, f.severity, tuple((p.rank, p.file, p.line) for p in f.culprits)) for f in findings[:8]]
