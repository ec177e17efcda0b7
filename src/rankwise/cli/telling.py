"""What `run` says and writes when there is something to tell: the terminal, verdict.json, the evidence, report.html."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from rankwise.cli.terminal import has_colour, width
from rankwise.evidence.folder import save_evidence
from rankwise.launch.faults import Faults
from rankwise.launch.output import OutputPump
from rankwise.launch.watch import Report
from rankwise.report.html import report_html
from rankwise.report.terminal import verdict_text
from rankwise.report.verdict import Outcome, verdict_dict, write_json_atomically


class Telling:
    """Keeps the run folder true, and the terminal short: each verdict is printed once, also where the folder cannot be written."""

    def __init__(self, folder: Path, faults: Faults) -> None:
        self._folder, self._faults = folder, faults
        self._printed: list[tuple[str, bool]] = []

    def tell(self, report: Report, output: OutputPump) -> None:
        if report.findings or report.is_final:
            with self._faults.guard(f"write the evidence to {self._folder}"):
                save_evidence(self._folder / "evidence", report.job)
            with self._faults.guard(f"write report.html to {self._folder}"):
                self._write_page(report_html(_verdict(report), report.job))
        report = replace(report, findings=self._faults.added_to(report.findings))
        with self._faults.guard(f"write verdict.json to {self._folder}"):
            write_json_atomically(self._folder / "verdict.json", _verdict(report))
        self._print(replace(report, findings=self._faults.added_to(report.findings)), output)

    def _print(self, report: Report, output: OutputPump) -> None:
        essence = [(f.code, f.certain) for f in report.findings]
        if report.findings and essence != self._printed and any(f.severity != "info" for f in report.findings):
            output.say("\n" + verdict_text(_verdict(report), folder=self._folder, colour=has_colour(), width=width()))
            self._printed = essence

    def _write_page(self, page: str) -> None:
        path = self._folder / "report.html"
        temporary = path.with_name(".report.html.tmp")
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        temporary.touch(mode=0o600)
        temporary.write_text(page, encoding="utf-8")
        temporary.replace(path)


def _verdict(report: Report) -> dict[str, Any]:
    return verdict_dict(
        cast(Outcome, report.outcome), report.exit_code, report.job.world_size, report.running_s, report.stuck_s, report.findings
    )
