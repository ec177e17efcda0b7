"""Reports a verdict of `run`: to the terminal, verdict.json, the evidence and report.html."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from rankwise.cli.options import has_colour, width
from rankwise.evidence.run_folder import save_evidence
from rankwise.files import write_whole
from rankwise.findings import Finding
from rankwise.launch.faults import Faults
from rankwise.launch.job_output import OutputPump
from rankwise.launch.watch import Report
from rankwise.report.finding_text import short_verdict_text, taken_back_text, verdict_text
from rankwise.report.html import report_html
from rankwise.report.verdict import Outcome, verdict_dict, write_json_atomically


class Telling:
    """Keeps verdict.json and the terminal consistent: every finding in the file was printed, and one that leaves it is taken back."""

    def __init__(self, folder: Path, faults: Faults) -> None:
        self._folder, self._faults = folder, faults
        self._standing: list[Finding] = []  # printed, and not taken back
        self._printed: set[tuple[Any, ...]] = set()
        self._outcome = ""

    def tell(self, report: Report, output: OutputPump) -> None:
        if report.findings or report.is_final:
            with self._faults.guard(f"write the evidence to {self._folder}"):
                save_evidence(self._folder / "evidence", report.job)
            with self._faults.guard(f"write report.html to {self._folder}"):
                write_whole(self._folder / "report.html", report_html(_verdict(report), report.job), is_private=True)
        report = replace(report, findings=self._faults.added_to(report.findings))
        with self._faults.guard(f"write verdict.json to {self._folder}"):
            write_json_atomically(self._folder / "verdict.json", _verdict(report))
        self._print(replace(report, findings=self._faults.added_to(report.findings)), output)

    def _print(self, report: Report, output: OutputPump) -> None:
        """Print findings: in full when they are new, in a line when they come again or are over."""
        codes = {finding.code for finding in report.findings}
        over = [finding for finding in self._standing if finding.code not in codes and not _is_note(finding)]
        new = [finding for finding in report.findings if _essence(finding) not in self._printed]
        again = [finding for finding in report.findings if finding.code not in {standing.code for standing in self._standing}]
        lines = [taken_back_text(finding, _why_over(report), colour=has_colour(), width=width()) for finding in over]
        if new:
            lines.append("\n" + verdict_text(_verdict(report), folder=self._folder, colour=has_colour(), width=width()))
        elif again or (report.is_final and report.findings and report.outcome != self._outcome):
            lines.append(short_verdict_text(_verdict(report), again, colour=has_colour(), width=width()))
        self._standing, self._outcome = report.findings, report.outcome
        self._printed |= {_essence(finding) for finding in report.findings}
        if lines:
            output.say("\n".join(lines))


def _verdict(report: Report) -> dict[str, Any]:
    return verdict_dict(
        cast(Outcome, report.outcome), report.exit_code, report.job.world_size, report.running_s, report.stuck_s, report.findings
    )


def _essence(finding: Finding) -> tuple[Any, ...]:
    """What has to change for a finding to be printed in full again: not the line at which a busy rank was seen."""
    return (
        finding.code,
        finding.certain,
        finding.severity,
        tuple(sorted({place.rank for place in finding.culprits if place.rank is not None})),
    )


def _is_note(finding: Finding) -> bool:
    """Whether a finding is neither a fault nor a suspicion; then its end is not announced."""
    return finding.certain and finding.severity == "info"


def _why_over(report: Report) -> str:
    if report.findings:
        return ""
    return {"running": "the job moves again", "completed": "the job ended well"}.get(report.outcome, "the job has ended")
