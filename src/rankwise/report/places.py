"""The `where` lines of a finding: culprits first, then the waiting ranks, grouped by place and operation."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rankwise.findings import Finding, Place, Wait, ranks_text, where
from rankwise.report.safe_text import one_line

DEFAULT_GROUPS = frozenset({"", "0", "default", "default_pg"})
_MAX_RUNS = 8
_T = TypeVar("_T")


@dataclass(frozen=True)
class WhereLine:
    """Ranks that are at the same place in the same operation."""

    ranks: tuple[int, ...]  # empty where the rank is not known
    who: str  # "rank 3 (pid 4242 on node-a)", "ranks 0-2, 4-7"
    place: str  # "train.py:88 train_epoch()", "" where it is not known
    file: str | None
    line: int | None
    is_culprit: bool
    op: str = ""  # "all_reduce #4118"


def where_lines(finding: Finding) -> list[WhereLine]:
    culprits = grouped(finding.culprits, lambda p: (p.file, p.line, p.function, p.rank is None))
    waits = grouped(finding.waiting, lambda w: (w.file, w.line, w.function, w.op, w.group, w.seq, w.rank is None))
    return [*map(_culprit_line, culprits), *(_line(group, op=op_text(group[0].op, group[0].seq, group[0].group)) for group in waits)]


def short_ranks(ranks: Iterable[int], max_runs: int = _MAX_RUNS) -> str:
    """The text of `ranks_text`, cut after `max_runs` runs: `ranks 1, 3, 5 and 2045 more`."""
    ordered = sorted(set(ranks))
    num_runs = 0
    for i, rank in enumerate(ordered):
        num_runs += i == 0 or rank != ordered[i - 1] + 1
        if num_runs > max_runs:
            return f"ranks {ranks_text(ordered[:i]).split(' ', 1)[1]} and {len(ordered) - i:,} more"
    return ranks_text(ordered)


def op_text(op: str | None, seq: int | None = None, group: str | None = None) -> str:
    """`all_reduce #4118`, `barrier #3 of group tp`."""
    text = one_line(op or "", 120)
    if not text:
        return ""
    text += f" #{seq}" if seq is not None else ""
    return text if (group or "") in DEFAULT_GROUPS else f"{text} of group {one_line(group, 80)}"


def _culprit_line(places: list[Place]) -> WhereLine:
    first = places[0]
    if first.rank is None and not first.file and all(place.host for place in places):  # findings of `check` name hosts
        return WhereLine((), ", ".join(dict.fromkeys(map(_host_text, places))), "", None, None, is_culprit=True)
    process = _process_text(first) if len(places) == 1 else ""
    return _line(places, f" ({process})" if process else "", is_culprit=True)


def _line(things: Sequence[Place | Wait], more: str = "", *, is_culprit: bool = False, op: str = "") -> WhereLine:
    """The line for ranks at one place; either all of their ranks are known, or none."""
    first, ranks = things[0], tuple(sorted({thing.rank for thing in things if thing.rank is not None}))
    who = short_ranks(ranks) if ranks else "a rank that could not be identified"
    place = one_line(where(first.file, first.line, first.function), 300) if first.file else ""
    return WhereLine(ranks, who + more, place, first.file, first.line, is_culprit, op)


def _host_text(place: Place) -> str:
    return one_line(place.host, 80) if place.pid is None else _process_text(place)


def _process_text(place: Place) -> str:
    pid = f"pid {place.pid}" if place.pid is not None else ""
    host = f"on {one_line(place.host, 80)}" if place.host else ""
    return " ".join(filter(None, (pid, host)))


def grouped(things: Iterable[_T], key: Callable[[_T], Hashable]) -> list[list[_T]]:
    groups: dict[Hashable, list[_T]] = {}
    for thing in things:
        groups.setdefault(key(thing), []).append(thing)
    return list(groups.values())
