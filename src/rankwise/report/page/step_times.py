"""Where a step's time goes on each rank, as the audit measured it."""

from __future__ import annotations

from rankwise.evidence.audit import Times, total_times
from rankwise.report.page.markup import Html, tag
from rankwise.report.page.scene import Scene

_MAX_RANKS = 64
_PARTS = {
    "data": "waiting for data",
    "forward": "forward",
    "backward": "backward, with DDP's reduction",
    "optimizer": "optimizer",
    "collective": "own collectives",
    "save": "saving",
}


def step_times_section(scene: Scene) -> Html | None:
    """A row for each rank, in milliseconds a step; None where no rank has made enough steps."""
    totals = {rank: total for rank, e in sorted(scene.job.ranks.items()) if (total := total_times(e.audit.times)) is not None}
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
