"""The ranks: a map of small squares for a large job, then one row per rank, or per set of ranks in the same situation."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rankwise.report.page.markup import Html, classes, joined, tag
from rankwise.report.page.rank_text import RankRow, state_mark
from rankwise.report.page.reported_job import ReportedJob
from rankwise.report.places import grouped, short_ranks
from rankwise.report.safe_text import duration_text
from rankwise.sizes import bytes_text

_MERGE_ABOVE = 16  # up to so many ranks each one has its own row
_MAX_ROWS = 48
_MAX_LISTED = 4096
_NUMBERED_UP_TO = 256


def rank_section(reported: ReportedJob, states: list[RankRow]) -> Html:
    rows = _merged(states) if len(states) > _MERGE_ABOVE else [[state] for state in states]
    shown, rest = rows[:_MAX_ROWS], rows[_MAX_ROWS:]
    head = tag("tr", *(tag("th", name, scope="col") for name in ("rank", "state", "where", "for", "last collective", "process", "memory")))
    return joined(
        [
            _rank_map(states) if len(states) > _MERGE_ABOVE else None,
            tag("table", tag("thead", head), tag("tbody", *(_row(reported, row) for row in shown)), class_="ranks"),
            _rest_note(rest) if rest else None,
            _processes(states) if len(rows) < len(states) else None,
        ]
    )


def _merged(states: list[RankRow]) -> list[list[RankRow]]:
    """Rows for sets of ranks in the same situation: culprits first, then the others from the smallest set to the largest."""
    groups = grouped(states, lambda state: (state.is_culprit, state.state, state.frame, state.last, state.is_pending))
    return sorted(groups, key=lambda group: (not group[0].is_culprit, len(group), group[0].rank))


def _row(reported: ReportedJob, group: list[RankRow]) -> Html:
    first = group[0]
    count = tag("small", f"{len(group):,} ranks, same") if len(group) > 1 else None
    label = short_ranks([state.rank for state in group]).split(" ", 1)[1]
    return tag(
        "tr",
        tag(
            "th",
            tag("b", label, class_="whole" if len(label) <= 20 else None),
            tag("em", "culprit") if first.is_culprit else None,
            count,
            scope="row",
        ),
        tag("td", state_mark(first), data_label="state"),
        tag("td", _where(reported, first), data_label="where"),
        tag("td", _range([s.since_s for s in group], duration_text), class_="num", data_label="for"),
        tag("td", _last(first), data_label="last collective"),
        tag("td", _process(group), data_label="process"),
        tag("td", _range([s.rss or None for s in group], bytes_text), class_="num", data_label="memory"),
        class_="culprit" if first.is_culprit else None,
    )


def _where(reported: ReportedJob, state: RankRow) -> Html:
    if state.frame is None:
        return tag("span", "not seen", class_="faint")
    spot = f"{reported.short(state.frame.file)}:{state.frame.line}"
    function = "" if state.frame.function == "<module>" else f"{state.frame.function}()"
    return joined([tag("code", spot, title=state.frame.file), " ", tag("span", function, class_="faint mono")])


def _last(state: RankRow) -> Html:
    if not state.last:
        return tag("span", "none seen", class_="faint")
    mark = tag("span", "pending", class_="pending") if state.is_pending else None
    return joined([tag("span", state.last, class_="mono"), " ", mark])


def _process(group: list[RankRow]) -> Html:
    hosts = sorted({state.host for state in group if state.host})
    on = f"on {hosts[0]}" if len(hosts) == 1 else f"on {len(hosts):,} hosts" if hosts else ""
    pid = group[0].pid
    who = f"{len(group):,} processes" if len(group) > 1 else f"pid {pid}" if pid is not None else ""
    return tag("span", f"{who} {on}".strip() or "–", class_="faint")


def _range(values: Iterable[float | None], text: Callable[[float], str]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    low, high = text(min(known)), text(max(known))
    return low if low == high else f"{low} – {high}"


def _rank_map(states: list[RankRow]) -> Html:
    is_numbered = len(states) <= _NUMBERED_UP_TO
    squares = joined(
        tag("i", state.rank if is_numbered else None, class_=classes(state.tone, "culprit" if state.is_culprit else "")) for state in states
    )
    words: dict[str, str] = {}
    for state in states:
        words.setdefault(state.tone, state.state.split()[0] if state.tone == "failed" else state.state)
    key = joined(tag("span", tag("i", class_=tone), word) for tone, word in words.items())
    culprit = tag("span", tag("i", class_="culprit"), "culprit") if any(state.is_culprit for state in states) else None
    size = "" if is_numbered else "tiny"
    return joined([tag("div", squares, class_=classes("map", size), aria_hidden="true"), tag("p", culprit, key, class_="key")])


def _rest_note(rest: list[list[RankRow]]) -> Html:
    ranks = [state.rank for group in rest for state in group]
    return tag("p", f"and {len(ranks):,} more ranks in {len(rest):,} other situations: {short_ranks(ranks)}", class_="note")


def _processes(states: list[RankRow]) -> Html:
    listed = joined(
        tag("li", tag("b", state.rank), f" {state.pid if state.pid is not None else '–'} {state.host}") for state in states[:_MAX_LISTED]
    )
    return tag("details", tag("summary", "every rank's process"), tag("ol", listed, class_="processes"))
