"""One finding on the page: what, where, why, next, the source around it, and the cause's own page folded below."""

from __future__ import annotations

import textwrap

from rankwise.causes import load_cause
from rankwise.findings import Finding
from rankwise.report.page.markup import Html, inline, joined, page_html, tag
from rankwise.report.page.reported_job import ReportedJob
from rankwise.report.places import WhereLine, where_lines

_MAX_WHERE = 12
_MAX_STEPS = 12
_MAX_SNIPPETS = 4
_AROUND = 4
_MAX_COLUMNS = 240


def finding_card(reported: ReportedJob, finding: Finding, *, is_root: bool) -> Html:
    certainty = "certain" if finding.certain else "suspected"
    chips = tag(
        "p",
        tag("span", finding.code, class_=f"chip {finding.severity}"),
        tag("span", finding.name, class_="name"),
        tag("span", certainty, class_=certainty),
        class_="chips",
    )
    lines = where_lines(finding)
    facts = joined(
        [
            _fact("where", joined(_where(line) for line in lines[:_MAX_WHERE]), _left_out(lines)) if lines else None,
            _fact("why", tag("p", inline(finding.why), class_="why")) if finding.why else None,
            _fact("next", tag("ul", *(tag("li", _step(step)) for step in finding.next[:_MAX_STEPS]))) if finding.next else None,
        ]
    )
    title = tag("h1" if is_root else "h3", finding.summary)
    return tag(
        "article",
        chips,
        title,
        tag("dl", facts),
        _snippets(reported, lines, is_folded=not is_root),
        _page(finding.code),
        class_="root" if is_root else None,
    )


def _fact(label: str, *content: Html | None) -> Html:
    return joined([tag("dt", label), tag("dd", *content)])


def _where(line: WhereLine) -> Html:
    place = tag("code", line.place) if line.place else None
    op = tag("span", line.op, class_="mono") if line.op else None
    who = tag("span", line.who, ": " if line.op else None, op)
    return tag("p", place, who, class_="at bad" if line.is_culprit else "at")


def _left_out(lines: list[WhereLine]) -> Html | None:
    count = len(lines) - _MAX_WHERE
    return tag("p", f"and {count:,} more places", class_="faint") if count > 0 else None


def _step(step: str) -> Html:
    return tag("code", step) if step.startswith("rankwise ") else inline(step)


def _snippets(reported: ReportedJob, lines: list[WhereLine], *, is_folded: bool) -> Html | None:
    """The source around each culprit, and around the place where most of the others wait."""
    culprits = [line for line in lines if line.is_culprit]
    waits = sorted((line for line in lines if not line.is_culprit), key=lambda line: -len(line.ranks))
    shown = [piece for line in culprits[: _MAX_SNIPPETS - 1] + waits[:1] if (piece := snippet(reported, line))]
    if not shown:
        return None
    drawn = tag("div", *shown, class_="snippets")
    return tag("details", tag("summary", "source"), drawn, class_="page") if is_folded else drawn


def _page(code: str) -> Html | None:
    try:
        cause = load_cause(code)
    except KeyError:
        return None
    title = tag("summary", f"{code} in general: {cause.title}")
    return tag("details", title, tag("div", page_html(cause.page), class_="prose"), class_="page")


def snippet(reported: ReportedJob, line: WhereLine) -> Html | None:
    """The lines of source around a place; None where the source was not kept."""
    source = reported.source_of(line.file) if line.file else None
    lines = source.splitlines() if source else []
    if line.line is None or not 0 < line.line <= len(lines):
        return None
    first, last = max(1, line.line - _AROUND), min(len(lines), line.line + _AROUND)
    shown = textwrap.dedent("\n".join(text[:_MAX_COLUMNS] for text in lines[first - 1 : last])).split("\n")
    rows = joined(
        tag("li", tag("span", number), tag("code", text), class_="here" if number == line.line else None)
        for number, text in enumerate(shown, first)
    )
    doing = f"waiting in {line.op}" if line.op else "culprit" if line.is_culprit else "waiting"
    caption = tag("figcaption", tag("b", reported.short(line.file or "")), tag("span", f"{line.who} · {doing}"))
    return tag("figure", caption, tag("ol", rows), class_="snippet bad" if line.is_culprit else "snippet")
