"""Draws the timeline: one table per process group, a cell per slot, a sentence for the slot where ranks part."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from rankwise.evidence.records import Call
from rankwise.report.page.markup import Html, classes, joined, tag
from rankwise.report.page.reported_job import ReportedJob, user_stack
from rankwise.report.page.timeline import (
    COLUMNS,
    MAX_ROWS,
    POINT_TO_POINT,
    Cell,
    Strip,
    Timeline,
    TimelineRow,
    build_timeline,
    recent_entries,
)
from rankwise.report.places import DEFAULT_GROUPS, short_ranks

_EVERY = 5  # columns between two labels
# Operation: (letter, colour class). The letter is there because not everybody can tell the colours apart.
_OPS = {
    "all_reduce": ("A", "k1"),
    "broadcast": ("B", "k2"),
    "all_gather": ("G", "k3"),
    "reduce_scatter": ("S", "k4"),
    "barrier": ("‖", "k5"),
    "all_to_all": ("X", "k6"),
    "send": ("→", "k4"),
    "recv": ("←", "k3"),
    "isend": ("→", "k4"),
    "irecv": ("←", "k3"),
    "reduce": ("R", "k6"),
    "gather": ("g", "k3"),
    "scatter": ("s", "k4"),
    "backward": ("∇", "k5"),
    "forward": ("ƒ", "k2"),
    "fsdp_forward": ("ƒ", "k2"),
    "ddp": ("D", "k2"),
    "next_batch": ("▤", "k4"),
    "end_of_data": ("∎", "k0"),
}
_OTHER = ("?", "k0")


def timeline_section(reported: ReportedJob) -> Html:
    timeline = build_timeline(reported)
    calls = _call_strip(reported, has_collectives=bool(timeline.shown))
    if not timeline.shown and calls is None:
        return tag("p", "No collective was seen.", class_="faint")
    return joined([_legend(timeline), *(_drawn(reported, strip) for strip in timeline.shown), _others_note(timeline), calls])


def _drawn(reported: ReportedJob, strip: Strip) -> Html:
    title = tag("h3", f"process group {_group_name(strip.group)}", tag("small", f"{strip.num_ranks:,} rank{'s' * (strip.num_ranks > 1)}"))
    notes = [
        "numbered from the Python calls that were seen, since torch's own record was not to be had" if strip.is_partial else "",
        f"{strip.num_later:,} later slot{'s' * (strip.num_later > 1)} not shown" if strip.num_later else "",
        f"no room for {short_ranks(strip.hidden)}" if strip.hidden else "",
    ]
    note = tag("p", "; ".join(filter(None, notes)), class_="note") if any(notes) else None
    table = tag("table", _head(strip), tag("tbody", *(_row(row, strip) for row in strip.rows)))
    return tag("section", title, _story(reported, strip), tag("div", table, class_="scroll", tabindex="0"), note, class_="strip")


def _others_note(timeline: Timeline) -> Html | None:
    notes = [
        f"{len(some):,} more process group{'s' * (len(some) > 1)} {what}: {_names(some)}"
        for some, what in ((timeline.parting, "where ranks part"), (timeline.agreeing, "where all ranks agree"))
        if some
    ]
    if timeline.left_out:
        notes.append(f"{len(timeline.left_out):,} ranks with yet other histories are not drawn: {short_ranks(timeline.left_out)}")
    return tag("p", ". ".join(notes), class_="note") if notes else None


def _names(groups: Sequence[str]) -> str:
    names = ", ".join(map(_group_name, groups[:12]))
    return names + (f" and {len(groups) - 12:,} more" if len(groups) > 12 else "")


def _group_name(group: str) -> str:
    return "default" if group in DEFAULT_GROUPS else group


def _story(reported: ReportedJob, strip: Strip) -> Html:
    """What every set of ranks did in the slot where they diverge; the ranks to look at come first."""
    if strip.diverges_at is None:
        return tag("p", f"All ranks agree up to #{strip.columns[-1]}.", class_="faint")
    index = strip.columns.index(strip.diverges_at)
    merged: dict[tuple[Cell, str], list[int]] = {}
    for row in strip.rows:
        before = f"#{strip.columns[index - 1]} {row.cells[index - 1].what}" if index and row.cells[index - 1].what else ""
        if row.cells[index].state != "unknown":
            merged.setdefault((row.cells[index], before), []).extend(row.ranks)
    said = sorted(merged.items(), key=lambda item: (not item[0][0].is_odd, len(item[1])))[:6]
    lines = joined(tag("li", *_sentence(reported, strip, *one), class_="bad" if one[0][0].is_odd else None) for one in said)
    return joined([tag("p", "Ranks part at ", tag("b", f"#{strip.diverges_at}"), ":", class_="story"), tag("ul", lines, class_="story")])


def _sentence(reported: ReportedJob, strip: Strip, said: tuple[Cell, str], ranks: list[int]) -> list[Html | str]:
    (cell, before), who = said, tag("b", short_ranks(ranks))
    if cell.state == "missing":
        return [who, " never got there; the last was " if before else " called none", tag("span", before, class_="mono")]
    log = reported.job.ranks[min(ranks)].collectives
    called = [entry for entry in recent_entries(log) if (entry.what.group, entry.seq) == (strip.group, strip.diverges_at)]
    stack = user_stack(tuple(log.stack_of(called[-1]))) if called else ()
    place: list[Html | str] = [" at ", tag("code", reported.place(stack[0]))] if stack else []
    return [who, " called ", tag("span", cell.what, class_="mono"), *place, ", still pending" if cell.state == "pending" else ", done"]


def _head(strip: Strip) -> Html:
    columns = strip.columns
    starts = range(0, len(columns), _EVERY)
    labels = joined(tag("th", f"#{columns[i]}", colspan=min(_EVERY, len(columns) - i), class_="seq") for i in starts)
    marks = joined(tag("td", "▼" if seq == strip.diverges_at else None) for seq in columns)
    marker = tag("tr", tag("th"), marks, class_="marks") if strip.diverges_at in columns else None
    return tag("thead", tag("tr", tag("th", "rank"), labels), marker)


def _row(row: TimelineRow, strip: Strip) -> Html:
    cells = (_cell(cell, f"#{seq} ", is_parting=seq == strip.diverges_at) for seq, cell in zip(strip.columns, row.cells, strict=True))
    return tag("tr", tag("th", _label(row.ranks), scope="row"), *cells, class_="culprit" if row.is_culprit else None)


def _label(ranks: Sequence[int]) -> Html:
    """The ranks without the word "rank"; a line may break after a comma, not inside `0-30`."""
    runs = short_ranks(ranks, 4).split(" ", 1)[1].split(", ")
    return joined(tag("span", run + ("," if i < len(runs) else ""), " ") for i, run in enumerate(runs, 1))


def _cell(cell: Cell, number: str, *, is_parting: bool) -> Html:
    letter, colour = _look(cell.op) if cell.op else ("", "")
    state = "" if cell.state == "done" else cell.state
    words = {"done": cell.what, "pending": f"{cell.what}, pending", "missing": "never called", "unknown": "not recorded"}
    blame = "" if not cell.is_odd else "odd" if cell.state != "missing" else "parting" if is_parting else ""
    return tag("td", letter, class_=classes(colour, state, blame), title=number + words[cell.state])


def _legend(timeline: Timeline) -> Html | None:
    cells = [cell for strip in timeline.shown for row in strip.rows for cell in row.cells]
    ops = sorted({cell.op for cell in cells if cell.op})[:10]
    keys = [tag("span", tag("i", _look(op)[0], class_=_look(op)[1]), op) for op in ops]
    states = {(cell.state, cell.is_odd) for cell in cells}
    if any(state == "pending" for state, _ in states):
        keys.append(tag("span", tag("i", class_="pending"), "pending"))
    if any(is_odd and state != "missing" for state, is_odd in states):
        keys.append(tag("span", tag("i", class_="odd"), "not what most ranks called"))
    if any(state == "missing" for state, _ in states):
        keys.append(tag("span", tag("i", class_="missing"), "never called"))
    return tag("p", *keys, class_="key cells") if cells else None


@lru_cache(maxsize=256)
def _look(op: str) -> tuple[str, str]:
    name = op.lower().split(":")[-1].lstrip("_")
    for old, new in (("allreduce", "all_reduce"), ("allgather", "all_gather"), ("alltoall", "all_to_all")):
        name = name.replace(old, new)
    return next((look for known, look in _OPS.items() if name.startswith(known)), _OTHER)


def _call_strip(reported: ReportedJob, *, has_collectives: bool) -> Html | None:
    """What Python called, newest at the right: for `send`/`recv`, which share no slots, and where torch's own record is missing."""
    merged: dict[tuple[Cell, ...], list[int]] = {}
    for rank, evidence in sorted(reported.job.ranks.items()):
        calls = [call for call in evidence.calls[-4 * COLUMNS :] if not has_collectives or call.op in POINT_TO_POINT][-COLUMNS:]
        merged.setdefault(tuple(map(_call_cell, calls)), []).append(rank)
    merged.pop((), None)
    if not merged:
        return None
    rows = sorted(merged.items(), key=lambda row: (reported.culprits.isdisjoint(row[1]), row[1]))
    width = max(len(cells) for cells, _ in rows)
    drawn = joined(
        tag(
            "tr",
            tag("th", _label(ranks), scope="row"),
            *[tag("td")] * (width - len(cells)),
            *(_cell(cell, "", is_parting=False) for cell in cells),
            class_=None if reported.culprits.isdisjoint(ranks) else "culprit",
        )
        for cells, ranks in rows[:MAX_ROWS]
    )
    title = tag("h3", "send and recv" if has_collectives else "calls", tag("small", "each rank's own order, newest at the right"))
    return tag("section", title, tag("div", tag("table", tag("tbody", drawn)), class_="scroll", tabindex="0"), class_="strip")


def _call_cell(call: Call) -> Cell:
    peer = f" peer {call.peer}" if call.peer is not None else ""
    return Cell("pending" if call.is_open else "done", call.op, f"{call.op}{peer}", is_odd=call.failed)
