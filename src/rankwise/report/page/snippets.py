"""A few lines of the user's source around a place, with its line marked."""

from __future__ import annotations

import textwrap

from rankwise.report.page.markup import Html, joined, tag
from rankwise.report.page.scene import Scene
from rankwise.report.places import WhereLine

_AROUND = 4
_MAX_COLUMNS = 240


def snippet(scene: Scene, line: WhereLine) -> Html | None:
    """None where the source was not kept."""
    source = scene.source_of(line.file) if line.file else None
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
    caption = tag("figcaption", tag("b", scene.short(line.file or "")), tag("span", f"{line.who} · {doing}"))
    return tag("figure", caption, tag("ol", rows), class_="snippet bad" if line.is_culprit else "snippet")
