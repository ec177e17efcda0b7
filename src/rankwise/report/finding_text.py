"""Findings and verdicts as terminal text, in the four-line form: what, where, why, next."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from rankwise.findings import Finding
from rankwise.report.places import WhereLine, where_lines
from rankwise.report.safe_text import one_line, printable
from rankwise.report.verdict import findings_of, outcome_facts
from rankwise.stages import STAGE_NAMED

_MARGIN = 7  # "where" and two spaces
_WIDEST = 110  # on wider terminals "certain" would stand too far from the summary
_NARROWEST = 40
_MAX_CULPRIT_LINES = 4
_MAX_WAIT_LINES = 4
_SEVERITY_STYLES = {"error": "bold red", "warning": "bold yellow", "info": "bold blue"}
_OUTCOME_STYLES = {"completed": "bold green", "running": "bold blue", "stalled": "bold yellow"}


def finding_text(finding: Finding, *, colour: bool, width: int) -> str:
    """One finding in full; lines never start or end with blanks that matter, and no newline at the end."""
    return _rendered(_finding_lines(finding, _fitting(width)), colour)


def verdict_text(verdict: dict[str, Any], *, folder: str | os.PathLike[str] | None = None, colour: bool, width: int) -> str:
    """All findings, root cause first and in full, then how the job ended and where the run folder is."""
    width = _fitting(width)
    lines: list[Text] = []
    for i, finding in enumerate(findings_of(verdict)):
        lines += _finding_lines(finding, width) if i == 0 else _short_lines(finding, width)
        lines.append(Text())
    lines += _wrapped(_outcome_line(verdict), width, indent=4)
    if folder is not None:
        lines.append(Text.assemble(("run folder ", "dim"), one_line(os.fspath(folder), 4000)))
    return _rendered(lines, colour)


def short_verdict_text(verdict: dict[str, Any], findings: Iterable[Finding], *, colour: bool, width: int) -> str:
    """The verdict where the findings were printed in full before: a line for each of these findings, and the state of the job."""
    width = _fitting(width)
    lines = [line for finding in findings for line in _headline(finding, width)]
    return _rendered([*lines, *_wrapped(_outcome_line(verdict), width, indent=4)], colour)


def taken_back_text(finding: Finding, why: str, *, colour: bool, width: int) -> str:
    """One line for a finding that no longer holds: "taken back" for a suspicion, "over" for one that was certain."""
    width = _fitting(width)
    verb = "over" if finding.certain else "taken back"
    text = Text.assemble((f"{verb}: ", "bold"), one_line(finding.summary), f" · {why}" if why else "")
    first, *more = _wrapped(text, width - _MARGIN)
    return _rendered([Text.assemble(_code(finding, "dim"), first), *(_indented(line) for line in more)], colour)


def _finding_lines(finding: Finding, width: int) -> Iterator[Text]:
    yield from _headline(finding, width)
    if stage := STAGE_NAMED.get(finding.stage):
        yield from _labelled("stage", [Text(f"not passed: {stage}")], width)
    yield from _labelled("where", _where_texts(where_lines(finding), width), width)
    yield from _labelled("why", map(Text, printable(finding.why).splitlines()), width, indent=0)
    yield from _labelled("next", _packed_steps(finding.next, width - _MARGIN), width)


def _short_lines(finding: Finding, width: int) -> Iterator[Text]:
    yield from _headline(finding, width)
    culprits = [line for line in where_lines(finding) if line.is_culprit]
    yield from _labelled("where", _where_texts(culprits[:2], width), width)


def _headline(finding: Finding, width: int) -> Iterator[Text]:
    certainty = Text("certain", "bold") if finding.certain else Text("suspected", "yellow")
    code = _code(finding, _SEVERITY_STYLES[finding.severity])
    room = max(20, width - _MARGIN - certainty.cell_len - 2)
    first, *more = _wrapped(Text(one_line(finding.summary), "bold"), room)
    first.rstrip()
    first.pad_right(max(2, width - code.cell_len - first.cell_len - certainty.cell_len))
    yield Text.assemble(code, first, certainty)
    yield from (_indented(line) for line in more)


def _code(finding: Finding, style: str) -> Text:
    code = Text(one_line(finding.code, 20), style)
    code.pad_right(max(2, _MARGIN - code.cell_len))
    return code


def _where_texts(lines: list[WhereLine], width: int) -> Iterator[Text]:
    culprits = [line for line in lines if line.is_culprit]
    waits = [line for line in lines if not line.is_culprit]
    shown = culprits[:_MAX_CULPRIT_LINES] + waits[:_MAX_WAIT_LINES]
    column = min(max((cell_len(line.place) for line in shown), default=0), (width - _MARGIN) // 2)
    for line in shown:
        place = Text(line.place, "bold" if line.is_culprit else "")
        if line.place:
            place.pad_right(max(0, column - place.cell_len) + 2)
        who = Text(line.who, "red" if line.is_culprit else "")
        yield Text.assemble(place, who, f": {line.op}" if line.op else "")
    left_out = len(lines) - len(shown)
    if left_out:
        yield Text(f"and {left_out:,} more place{'s' * (left_out > 1)}", "dim")


def _packed_steps(steps: Iterable[str], room: int) -> Iterator[Text]:
    """Steps joined by " · "; a step that fits on a line of its own is not broken."""
    line = Text()
    for step in map(Text, (one_line(step) for step in steps)):
        if step.plain.startswith("rankwise "):
            step.stylize("cyan")
        if line and line.cell_len + step.cell_len + 5 > room:  # " · " before it, " ·" after it
            yield line.append(" ·")
            line = step
        else:
            line = Text.assemble(line, " · ", step) if line else step
    if line:
        yield line


def _labelled(label: str, texts: Iterable[Text], width: int, indent: int = 2) -> Iterator[Text]:
    head = Text(label.ljust(_MARGIN), "dim")
    for text in texts:
        for line in _wrapped(text, width - _MARGIN, indent):
            yield Text.assemble(head, line)
            head = Text(" " * _MARGIN)


def _wrapped(text: Text, room: int, indent: int = 0) -> list[Text]:
    """Lines of at most `room` cells; a word longer than that (a path) stays whole, so that it can be copied."""
    breaks: list[int] = []
    used = 0
    for word in re.finditer(r"\S+\s*", text.plain):
        if used and used + cell_len(word[0].rstrip()) > room - (indent if breaks else 0):
            breaks.append(word.start())
            used = 0
        used += cell_len(word[0])
    first, *more = text.divide(breaks) if breaks else [text]
    return [first, *(Text(" " * indent) + line for line in more)]


def _outcome_line(verdict: dict[str, Any]) -> Text:
    outcome = one_line(verdict.get("outcome", "unknown"), 40)
    return Text.assemble((outcome, _OUTCOME_STYLES.get(outcome, "bold red")), *(f" · {fact}" for fact in outcome_facts(verdict)))


def _indented(line: Text) -> Text:
    return Text(" " * _MARGIN) + line


def _fitting(width: int) -> int:
    return max(_NARROWEST, min(width, _WIDEST))


def _rendered(lines: Iterable[Text], colour: bool) -> str:
    system: Literal["standard"] | None = "standard" if colour else None
    console = Console(file=io.StringIO(), force_terminal=colour, color_system=system, no_color=not colour, width=1000, _environ={})
    with console.capture() as capture:
        for line in lines:
            line.rstrip()
            console.print(line, soft_wrap=True)
    return capture.get().rstrip("\n")
