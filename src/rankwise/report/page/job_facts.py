"""The command, versions and times; where a step's time goes; what could not be seen; the last output of the culprits."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime

from rankwise.evidence.audit import Times, total_times
from rankwise.report.page.markup import Html, block, joined, tag
from rankwise.report.page.reported_job import ReportedJob
from rankwise.report.places import short_ranks
from rankwise.report.safe_text import duration_text
from rankwise.version import __version__

_MAX_BLIND = 30
_MAX_TAILS = 4
_EPOCH_SINCE_NS = 10**18  # September 2001; a smaller number is no time since 1970
_MAX_RANKS = 64
_PARTS = {
    "data": "waiting for data",
    "forward": "forward",
    "backward": "backward, with DDP's reduction",
    "optimizer": "optimizer",
    "collective": "own collectives",
    "save": "saving",
}


def facts_section(reported: ReportedJob) -> Html:
    rows = joined(joined([tag("dt", label), tag("dd", value)]) for label, value in _facts(reported) if value)
    return tag("dl", rows, class_="facts")


def blind_section(reported: ReportedJob) -> Html | None:
    """What could not be seen, for the job and for each set of ranks; None when all was seen."""
    ranks_with: dict[str, list[int]] = {}
    for rank, evidence in sorted(reported.job.ranks.items()):
        for words in evidence.blind:
            ranks_with.setdefault(words, []).append(rank)
    lines = [*reported.job.blind, *(f"{short_ranks(ranks)}: {words}" for words, ranks in ranks_with.items())]
    if reported.job.lost_hosts:
        lines.insert(0, f"hosts that stopped answering: {', '.join(reported.job.lost_hosts[:_MAX_BLIND])}")
    left_out = tag("li", f"and {len(lines) - _MAX_BLIND:,} more") if len(lines) > _MAX_BLIND else None
    return tag("ul", *(tag("li", line) for line in lines[:_MAX_BLIND]), left_out, class_="blind") if lines else None


def output_section(reported: ReportedJob) -> Html | None:
    """The last lines that the culprits wrote."""
    named = {f"rank-{rank}" for rank in sorted(reported.culprits)[:_MAX_TAILS]}
    tails = [(name, text) for name, text in reported.job.log_tails.items() if name.removesuffix(".log") in named and text.strip()]
    drawn = (tag("figure", tag("figcaption", name), tag("pre", block(text, 6000), class_="code"), class_="tail") for name, text in tails)
    return joined(drawn) if tails else None


def _facts(reported: ReportedJob) -> Iterator[tuple[str, str | Html]]:
    job = reported.job
    yield "command", tag("code", shlex.join(job.command))
    yield "started", _clock(job.started_ns)
    yield "evidence of", _clock(job.now_ns)
    yield "hosts", _several({rank.host for rank in job.ranks.values() if rank.host})
    yield "torch", _several({rank.torch for rank in job.ranks.values() if rank.torch})
    yield "rankwise", __version__
    yield "backend", _several({init.backend for rank in job.ranks.values() for init in rank.inits if init.backend})
    yield "launched as", job.launch_style
    yield "stuck means", f"no progress for {duration_text(job.stall_after_s)}"
    yield "restarts", str(job.restarts) if job.restarts else ""


def _clock(time_ns: int) -> str:
    if not _EPOCH_SINCE_NS < time_ns < 4 * _EPOCH_SINCE_NS:
        return ""
    return datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _several(words: set[str]) -> str:
    ordered = sorted(words, key=lambda word: [int(piece) if piece.isdecimal() else piece for piece in re.split(r"(\d+)", word[:80])])
    more = f" and {len(ordered) - 8:,} more" if len(ordered) > 8 else ""
    return ", ".join(ordered[:8]) + more


def step_times_section(reported: ReportedJob) -> Html | None:
    """A row for each rank, in milliseconds a step; None where no rank has made enough steps."""
    totals = {rank: total for rank, e in sorted(reported.job.ranks.items()) if (total := total_times(e.audit.times)) is not None}
    if not totals:
        return None
    heads = ["rank", "steps", "a step", *_PARTS.values(), "other", "the audit's own share"]
    rows = [_row(rank, total) for rank, total in list(totals.items())[:_MAX_RANKS]]
    return tag("table", tag("thead", tag("tr", *(tag("th", head) for head in heads))), tag("tbody", *rows), class_="ranks")


def _row(rank: int, total: Times) -> Html:
    parts = {part: getattr(total, part) / total.steps for part in _PARTS}
    other = total.wall / total.steps - sum(parts.values())
    cells = [
        str(rank),
        f"{total.steps:,}",
        f"{total.wall / total.steps:.1f} ms",
        *(f"{ms:.1f} ms" for ms in parts.values()),
        f"{other:.1f} ms",
    ]
    return tag("tr", *(tag("td", cell) for cell in cells), tag("td", f"{100 * total.audit / max(total.wall, 1e-9):.1f} %"))
