"""The loop of `rankwise run`: look at the job, decide, tell, act.

Nothing that fails in here may cost the user's job: every step runs behind `Faults.guard`, in a thread beside the one that follows the job.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rankwise.causes import load_cause
from rankwise.diagnose import diagnose
from rankwise.diagnose.silent import find_silent, is_silent
from rankwise.diagnose.straggler import find_straggler, slow_rank
from rankwise.diagnose.wording import relative_to
from rankwise.evidence.records import JobEvidence
from rankwise.findings import Finding
from rankwise.launch.collect import Collector
from rankwise.launch.faults import Guarded
from rankwise.launch.job import END_GRACE_S, TICK_S, RunningJob
from rankwise.launch.job_output import OutputPump
from rankwise.launch.node_messages import Verdict
from rankwise.launch.nodes import OneNode, join_nodes
from rankwise.launch.observe import Observer
from rankwise.launch.pace import Pace
from rankwise.launch.plan import RunPlan
from rankwise.launch.starting import starting_text
from rankwise.launch.trace import write_trace

HUNG_EXIT_CODE = 70
_LOOK_EVERY_NS = 1_000_000_000
_STEADY_AFTER_S, _STEADY_QUIET_S = 5.0, 1.0  # a job that has run for so long and moved within so long is looked at less often
_STEADY_TICK_S, _STEADY_LOOK_EVERY_NS = 0.5, 4_000_000_000
_AUDIT_EVERY_NS = 2_000_000_000
_AUDIT_ALLOWED_NS, _AUDIT_SHARE = 300_000_000, 0.003  # CPU time that comparisons may take: a fixed part, and a share of the job's time
_ARRIVALS_EVERY_NS = 10_000_000_000
_CONFIRM_S = 1.0
_CRASH_GRACE_S = 3.5
_TAIL = 4000


@dataclass(frozen=True)
class Report:
    """The findings at one moment; `cli` and `report` turn them into text and files."""

    outcome: str
    exit_code: int | None
    findings: list[Finding]
    job: JobEvidence
    running_s: float
    stuck_s: float | None
    is_final: bool


Teller = Callable[[Report, OutputPump], None]


class Watch:
    """One job on this host, from start to end. `follow`, in the other thread, uses its public attributes."""

    def __init__(self, plan: RunPlan, folder: Path, job: RunningJob, tell: Teller) -> None:
        self._plan, self._folder, self._job, self._tell = plan, folder, job, tell
        self._output = job.output
        self.exit_code: int | None = None  # of `rankwise run`, once that is decided
        self.is_over = threading.Event()  # set once `follow` no longer reads the guardian's reports, so that this thread may
        self.step, self.step_s = "begin to watch", time.monotonic()  # what is done now, and since when
        self._pace = Pace(plan.stall_after_s)
        self._nodes: OneNode = OneNode()
        self._has_joined = False
        self._reported: Report | None = None
        self._suspected: tuple[Finding, ...] = ()  # the last rank that kept others waiting: torch may give up on it later
        self._stopped: Report | None = None  # what is said when a hung job is stopped
        self._looked_ns, self._is_steady = 0, False
        self._waiting = ""
        self._silent: list[Finding] = []  # training that runs but trains wrong, as far as was seen last
        self._audited_ns, self._num_audited, self._audits_ns, self._audits_since_ns = 0, 0, 0, 0  # audits_ns: what they have cost so far
        self._straggler: list[Finding] = []
        self._arrivals_ns = 0

    def run(self) -> None:
        """Watch the job to its end, and tell how it ended."""
        while self._job.code is None and self._stopped is None:
            now = time.time_ns()
            self._turn(now)
            self._is_steady = self._has_joined and self._running_s() > _STEADY_AFTER_S and self._pace.quiet_s(now) < _STEADY_QUIET_S
            self.is_over.wait(_STEADY_TICK_S if self._is_steady else TICK_S)
        self.is_over.wait()
        if not self._job.not_started:
            report = self._stopped or self._last_report(self._job.code or 0)
            self.exit_code = report.exit_code
            self._end(report)
        with self._guard("take leave of the other nodes"):
            self._nodes.leave()

    def _guard(self, step: str) -> AbstractContextManager[Guarded]:
        self.step, self.step_s = step, time.monotonic()
        return self._job.faults.guard(step)

    def _join(self) -> None:
        """Look for the first time, and find the other nodes."""
        self._observer = Observer(self._job.live, self._job.guardian.pid, os.uname().nodename)
        self._observer.last_output = self._output.last_output
        self._observer.ended = self._job.ended
        self._collector = Collector(self._plan, self._observer, self._job.live, self._folder / "logs", self._job.started_ns)
        self._nodes = join_nodes(self._plan, self._observer, self._collect)
        self._has_joined = True

    # -- following ------------------------------------------------------------------------------------------------------------

    def _turn(self, now: int) -> None:
        """Everything that is done at each look; a step that fails does not keep the next ones from running."""
        if not self._has_joined:
            with self._guard("begin to watch"):
                self._join()
        if not self._has_joined:
            return
        with self._guard("look at the processes"):
            self._look(now)
        with self._guard("show the status line"):
            self._show_status(now)
        with self._guard("hear the other nodes"):
            self._nodes.turn()
        if self._job.asked:  # a rank that ends because the user ended the job is not a finding
            return
        with self._guard("look closer at the ranks"):
            self._look_closer(now)
        with self._guard("judge the job"):
            self._judge(now)
        with self._guard("take back what is over"):
            self._take_back()
        with self._guard("look for wrong training"):
            self._look_at_training(now)

    def _look(self, now: int) -> None:
        if now - self._looked_ns < (_STEADY_LOOK_EVERY_NS if self._is_steady else _LOOK_EVERY_NS):
            self._observer.glance(now)
        else:
            self._looked_ns = now
            self._observer.look(now)
            for rank, pids in self._observer.rank_pids().items():
                for pid in pids:
                    self._output.name_rank(pid, rank)
        self._pace.note(self._observer)

    def _show_status(self, now: int) -> None:
        if self._output.shows_status:
            starting = starting_text(self._observer, self._nodes.other_nodes(), now)
            self._output.status(self._pace.status_line(self._observer, self._job.started_ns, now, self._waiting, starting))

    def _look_closer(self, now: int) -> None:
        depth = self._pace.wanted_depth(self._observer, now) or self._nodes.wanted_depth()
        depth = "deep" if self._collector.has_late_stacks else depth
        if depth and self._nodes.can_ask():
            self._nodes.ask(self._collect(depth), depth)

    def _collect(self, depth: str) -> JobEvidence:
        """The evidence at this depth; where a deep look fails, what the recorders alone show."""
        job = None
        if depth == "deep":
            with self._guard("read stacks, locks and sockets"):
                job = self._collected("deep")
            depth = "flight"
        return job or self._collected(depth)

    def _collected(self, depth: str, exit_code: int | None = None) -> JobEvidence:
        job = self._collector.collect(depth, time.time_ns(), self._pace.stall_after_s, exit_code=exit_code)
        tails = {"launcher": self._output.last_output(None)[-_TAIL:]} if exit_code and not job.ranks else {}
        return replace(job, blind=(*job.blind, *self._job.faults.spots()), suspected=self._suspected, log_tails={**job.log_tails, **tails})

    def _judge(self, now: int) -> None:
        """Decide, tell what is new, and stop a job that cannot go on."""
        if (agreed := self._nodes.stop_order()) is not None:
            self._stop_hung(agreed)
        elif (job := self._nodes.whole_job()) is not None:
            self._judge_job(job, now)

    def _judge_job(self, job: JobEvidence, now: int) -> None:
        every = [finding for finding in diagnose(job) if not is_silent(finding)]
        self._waiting = every[0].summary if every else ""
        is_stalled = max(self._pace.quiet_s(now), self._pace.longest_wait_s(self._observer, now)) >= self._pace.stall_after_s
        findings = _worth_telling(every, is_stalled)
        stuck_s = self._pace.quiet_s(now)
        is_deadlocked = bool(findings) and findings[0].deadlock and findings[0].severity == "error"
        if not is_deadlocked:
            self._pace.forget_proof()
        else:
            # A launcher whose rank died ends the others by itself, in its own way and with its own exit code: it gets the time to do so.
            confirm_s = _CRASH_GRACE_S if findings[0].code.startswith("RW4") else _CONFIRM_S
            if not self._pace.is_confirmed(_progress_of_waiting(findings[0], job), now, confirm_s):
                return
        outcome = "hung" if is_deadlocked else "stalled" if is_stalled and any(f.severity != "info" for f in findings) else "running"
        self._report(Report(outcome, None, findings, job, self._running_s(), stuck_s, False))
        if is_deadlocked and self._plan.on_stall == "abort":
            agreed = Verdict("hung", findings, job, stuck_s)
            with self._guard("agree with the other nodes"):
                agreed = self._nodes.publish(agreed)
            self._stop_hung(agreed)

    def _look_at_training(self, now: int) -> None:
        """Compare what the ranks' audits show so far; with several nodes only at the end, when all evidence is in one place."""
        self._audits_since_ns = self._audits_since_ns or now
        allowed_ns = _AUDIT_ALLOWED_NS + _AUDIT_SHARE * (now - self._audits_since_ns)
        if now - self._audited_ns < _AUDIT_EVERY_NS or self._audits_ns > allowed_ns or self._plan.num_nodes > 1:
            return
        num_audited = self._observer.num_audited()
        if num_audited == self._num_audited:
            return
        self._audited_ns, self._num_audited, began_ns = now, num_audited, time.thread_time_ns()
        job = self._collected("audit")
        self._silent = [relative_to(finding, job.cwd) for finding in find_silent(job)]
        self._audits_ns += time.thread_time_ns() - began_ns
        self._silent += self._look_at_pace(job, now)
        reported = self._reported
        others = [finding for finding in reported.findings if not is_silent(finding)] if reported else []
        self._report(Report(reported.outcome if reported and others else "running", None, others, job, self._running_s(), None, False))

    def _look_at_pace(self, job: JobEvidence, now: int) -> list[Finding]:
        """Look where a rank is that seems to keep the others waiting, and now and then ask the recorders who arrives last."""
        slow = slow_rank(job)
        if slow is None or (pid := job.ranks[slow].pid) is None:
            self._straggler = []
            return []
        self._collector.sample_stack(pid)
        if now - self._arrivals_ns > _ARRIVALS_EVERY_NS:
            self._arrivals_ns = now
            found = find_straggler(self._collected("flight"))
            self._straggler = [relative_to(found, job.cwd)] if found is not None else []
        return self._straggler

    def _take_back(self) -> None:
        """Withdraw what was suspected of ranks that have all moved since; a job that moves is not looked at more closely."""
        reported = self._reported
        if reported is None or not self._pace.have_all_moved_since(self._observer, reported.job.now_ns):
            return
        kept = [finding for finding in reported.findings if (finding.certain and finding.severity == "error") or is_silent(finding)]
        if len(kept) < len(reported.findings):
            self._waiting = ""
            self._report(Report("running", None, kept, reported.job, self._running_s(), None, False))

    def _report(self, report: Report) -> None:
        """Tell what is new; what comes after does not depend on whether telling succeeds."""
        silent = [] if report.outcome == "hung" else self._silent
        report = replace(report, findings=[*(f for f in report.findings if not is_silent(f)), *silent])
        if _essence(report.findings) == _essence(self._reported.findings if self._reported else []):
            return
        if not report.findings and self._reported is not None and has_outlasted_timeout(self._reported, time.time_ns()):
            return  # NCCL's watchdog is about to end the job because of what was told, so it is not taken back
        self._reported = report
        if report.findings and report.findings[0].code.startswith(("RW3", "RW502")):
            self._suspected = tuple(report.findings[:4])
        with self._guard("tell what was found"):
            self._tell(report, self._output)

    def _stop_hung(self, agreed: Verdict) -> None:
        self.exit_code = HUNG_EXIT_CODE
        self._stopped = Report("hung", HUNG_EXIT_CODE, agreed.findings, agreed.job, self._running_s(), agreed.stuck_s, True)

    # -- ending ---------------------------------------------------------------------------------------------------------------

    def _last_report(self, code: int) -> Report:
        """The last report, after the command has ended and what is left was gathered."""
        self._look_again()
        quiet_s: float | None = None
        with self._guard("tell how long it was quiet"):
            quiet_s = self._pace.quiet_s(time.time_ns())
        with self._guard("end what the command left behind"):
            self._job.end_all(END_GRACE_S)
        self._look_again()
        job = JobEvidence(self._plan.command, self._job.started_ns, time.time_ns(), None, self._pace.stall_after_s, {}, exit_code=code)
        if self._has_joined:
            with self._guard("gather what the ranks left"):
                job = self._collected("end", code)
        if self._plan.profile:
            with self._guard(f"write trace.json to {self._folder}"):
                write_trace(self._folder / "trace.json", self._job.live, job)
        with self._guard("hear the other nodes"):
            job = self._nodes.last_job(job, is_hurried=bool(self._job.asked))
        verdict = Verdict("completed" if not job.exit_code else "crashed", [], job)
        with self._guard("judge how the job ended"):
            verdict = self._last_verdict(verdict)
        with self._guard("agree with the other nodes"):
            verdict = self._nodes.publish(verdict)
        code = HUNG_EXIT_CODE if verdict.outcome == "hung" else code
        stuck_s = quiet_s if verdict.outcome != "completed" else None  # at its end a job that went well was quiet, not stuck
        return Report(verdict.outcome, code, verdict.findings, verdict.job, self._running_s(), stuck_s, True)

    def _look_again(self) -> None:
        if self._has_joined:
            with self._guard("look at the processes"):
                self._observer.look(time.time_ns())

    def _last_verdict(self, verdict: Verdict) -> Verdict:
        if self._job.asked:  # the user ended the job: the verdict is what was seen before, not that the ranks were ended
            return self._verdict_so_far(verdict)
        findings = diagnose(verdict.job)
        if verdict.outcome == "completed":
            findings = still_true_of_completed(findings, verdict.job)
        return replace(verdict, findings=findings)

    def _verdict_so_far(self, verdict: Verdict) -> Verdict:
        if self._reported is None:
            return verdict
        is_stalled = any(f.severity != "info" and not is_silent(f) for f in self._reported.findings)
        return Verdict("stalled" if is_stalled else verdict.outcome, self._reported.findings, self._reported.job)

    def _end(self, report: Report) -> None:
        """End a hung job, complete the logs, and tell the verdict."""
        if self._stopped is not None:
            self._output.mute()
            with self._guard("end the hung job"):
                self._job.end_all(0.5)
        with self._guard("complete the logs"):
            self._complete_logs()
        with self._guard("show the last output"):
            self._output.stop()
        with self._guard("tell the verdict"):
            self._tell(report, self._output)

    def _complete_logs(self) -> None:
        for rank in self._observer.rank_pids() if self._has_joined else ():
            journals = [self._observer.journals[pid] for pid in self._observer.processes_of(rank)]
            self._output.complete_log(rank, [file for journal in journals for file in (journal.out, journal.err) if file])

    def _running_s(self) -> float:
        return (time.time_ns() - self._job.started_ns) / 1e9


def _worth_telling(findings: list[Finding], is_stalled: bool) -> list[Finding]:
    """Findings to tell now: proven ones at once, suspicions only of a job that has stalled, notes only beside other findings."""
    kept = [finding for finding in findings if ((finding.certain or finding.deadlock) and finding.severity == "error") or is_stalled]
    return kept if any(not load_cause(finding.code).note for finding in kept) else []


def still_true_of_completed(findings: list[Finding], job: JobEvidence) -> list[Finding]:
    """The findings that still hold for a job whose launcher reports success: that a rank failed may be accepted, so it is a warning."""
    has_failed = any(rank.ended is not None and rank.ended.kind == "exception" for rank in job.ranks.values())
    told = [
        f
        for f in findings
        if is_silent(f) or f.severity == "info" or ((f.certain or has_failed) and f.code[:3] in ("RW2", "RW4")) or f.code == "RW205"
    ]
    return [f.with_severity("warning") if f.code.startswith("RW4") else f for f in told]


def _progress_of_waiting(finding: Finding, job: JobEvidence) -> dict[int, int]:
    ranks = {*(wait.rank for wait in finding.waiting), *(place.rank for place in finding.culprits)}
    return {rank: evidence.last_progress_ns for rank, evidence in job.ranks.items() if rank in ranks}


def has_outlasted_timeout(reported: Report, now_ns: int) -> bool:
    """Whether a rank on NCCL has waited for longer than its process group allows; gloo raises at once, so it needs no such check."""
    ranks = reported.job.ranks
    waiting = [ranks[wait.rank] for finding in reported.findings for wait in finding.waiting if wait.rank in ranks]
    limits = [(rank, init.timeout_s) for rank in waiting for init in rank.inits[-1:] if init.timeout_s and "nccl" in init.backend]
    return any(now_ns - rank.last_progress_ns > limit_s * 1e9 for rank, limit_s in limits)


def _essence(findings: list[Finding]) -> list[tuple[Any, ...]]:
    """What two reports are compared by: cause, certainty and culprits, not the seconds in the text."""
    return [(f.code, f.certain, f.severity, tuple((p.rank, p.file, p.line) for p in f.culprits)) for f in findings[:8]]
