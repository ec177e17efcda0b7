"""report.html: one self-contained page, no network, no script; hostile evidence stays text."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import Any

from rankwise.evidence.records import JobEvidence
from rankwise.report.page.finding_card import finding_card
from rankwise.report.page.job_facts import blind_section, facts_section, output_section, step_times_section
from rankwise.report.page.markup import Html, joined, tag
from rankwise.report.page.merged_stacks import stack_section
from rankwise.report.page.rank_rows import rank_section
from rankwise.report.page.rank_text import rank_states
from rankwise.report.page.reported_job import ReportedJob, reported_job
from rankwise.report.page.timeline_table import timeline_section
from rankwise.report.safe_text import one_line
from rankwise.report.verdict import findings_of, outcome_facts

_OUTCOME_TONES = {"completed": "good", "running": "calm", "stalled": "warn"}


def report_html(verdict: dict[str, Any], job: JobEvidence) -> str:
    """The whole page; it stays under a megabyte or so at any world size, and can always be encoded as UTF-8."""
    reported = reported_job(job, findings_of(verdict))
    states = rank_states(reported)
    body = joined(
        [
            _masthead(verdict),
            _verdict(reported),
            _part("Ranks", rank_section(reported, states)) if states else None,
            _part("Timeline", timeline_section(reported), "the last collectives of every rank, aligned by sequence number"),
            _part("Where the time goes", times, "milliseconds a step, on each rank") if (times := step_times_section(reported)) else None,
            _part("Stacks", stack_section(reported, states), "ranks at the same line of your code together") if job.ranks else None,
            _part("Last output", output, "of the culprits") if (output := output_section(reported)) else None,
            _part("Not seen", blind, "the verdict was reached without this") if (blind := blind_section(reported)) else None,
            _part("Job", facts_section(reported)),
        ]
    )
    return "<!doctype html>\n" + tag("html", _head(verdict, reported), tag("body", tag("main", body)), lang="en") + "\n"


def _head(verdict: dict[str, Any], reported: ReportedJob) -> Html:
    code = f"{reported.findings[0].code} " if reported.findings else ""
    style = resources.files("rankwise.report.page").joinpath("style.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", one_line(f"{code}{verdict.get('outcome', '')} · rankwise", 200)),
        tag("style", Html(style)),
    )


def _masthead(verdict: dict[str, Any]) -> Html:
    outcome = one_line(verdict.get("outcome", "unknown"), 40)
    pill = tag("span", outcome, class_=f"outcome {_OUTCOME_TONES.get(outcome, 'bad')}")
    return tag(
        "header", tag("span", "rankwise", class_="brand"), pill, *(tag("span", fact) for fact in outcome_facts(verdict)), class_="masthead"
    )


def _verdict(reported: ReportedJob) -> Html:
    if not reported.findings:
        return tag("section", tag("article", tag("h1", "Nothing was found."), class_="root"), id="verdict")
    root, *rest = reported.findings
    others = tag("div", *(finding_card(reported, finding, is_root=False) for finding in rest), class_="others")
    heading = tag("h2", "Also found") if rest else None
    return tag("section", finding_card(reported, root, is_root=True), heading, others if rest else None, id="verdict")


def _part(title: str, content: Html, hint: str = "") -> Html:
    return tag("section", tag("h2", title, tag("small", hint) if hint else None), content, id=title.lower().replace(" ", "-"))
