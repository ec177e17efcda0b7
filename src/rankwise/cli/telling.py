"""What `run` says and writes when there is something to tell: the terminal, verdict.json, the evidence, report.html."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import cast

from rankwise.cli.terminal import has_colour, width
from rankwise.evidence.folder import save_evidence
from rankwise.launch.output import OutputPump
from rankwise.launch.watch import Report
from rankwise.report.html import report_html
from rankwise.report.terminal import verdict_text
from rankwise.report.verdict import Outcome, verdict_dict, write_json_atomically


class Telling:
    """Keeps the run folder true, and the terminal short: each verdict is printed once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._printed: list[tuple[str, bool]] = []

    def tell(self, report: Report, output: OutputPump) -> None:
        verdict = verdict_dict(
            cast(Outcome, report.outcome), report.exit_code, report.job.world_size, report.running_s, report.stuck_s, report.findings
        )
        try:
            write_json_atomically(self._folder / "verdict.json", verdict)
            if report.findings or report.is_final:
                save_evidence(self._folder / "evidence", report.job)
                self._write_page(report_html(verdict, report.job))
        except OSError as error:
            output.say(f"rankwise: cannot write to {self._folder}: {error.strerror}")
        essence = [(f.code, f.certain) for f in report.findings]
        if report.findings and essence != self._printed and any(f.severity != "info" for f in report.findings):
            output.say("\n" + verdict_text(verdict, folder=self._folder, colour=has_colour(), width=width()))
            self._printed = essence

    def _write_page(self, page: str) -> None:
        path = self._folder / "report.html"
        temporary = path.with_name(".report.html.tmp")
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        temporary.touch(mode=0o600)
        temporary.write_text(page, encoding="utf-8")
        temporary.replace(path)
