"""The last collectives of every rank, slot by slot: which ranks agree, which called something else, which never came.

Pure: arrays in, strips out. Ranks with equal logs are looked at once, so the cost depends on the number of different logs, not of ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Literal

from rankwise.evidence.collective_log import CollectiveLog, LoggedCollective, Signature
from rankwise.evidence.records import JobEvidence
from rankwise.report.page.reported_job import ReportedJob
from rankwise.report.places import DEFAULT_GROUPS

COLUMNS = 40
MAX_ROWS = 24
MAX_STRIPS = 5
_AFTER = 11  # columns shown after the divergence: few enough that a phone shows it without scrolling
_TAIL = 256  # the last entries of a rank, which are looked at
_MAX_KINDS = 256  # at most so many different histories are drawn
POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv"})

CellState = Literal["done", "pending", "missing", "unknown"]


@dataclass(frozen=True)
class Cell:
    """One rank's collective in one slot; `missing` means it never came, `unknown` that it was not recorded."""

    state: CellState
    op: str = ""
    what: str = ""
    is_odd: bool = False  # differs from what the ranks that are not to blame called; where no rank is blamed, from the majority


@dataclass(frozen=True)
class TimelineRow:
    ranks: tuple[int, ...]
    cells: tuple[Cell, ...]
    is_culprit: bool


@dataclass(frozen=True)
class Strip:
    """One process group's timeline."""

    group: str
    columns: range  # sequence numbers
    rows: tuple[TimelineRow, ...]
    diverges_at: int | None
    is_partial: bool = False  # numbered from the Python calls that were seen, not by torch
    num_later: int = 0  # slots after the last column
    hidden: tuple[int, ...] = ()  # ranks that found no room

    @property
    def num_ranks(self) -> int:
        return sum(len(row.ranks) for row in self.rows) + len(self.hidden)


@dataclass(frozen=True)
class Timeline:
    """The strips to draw, the most important first, and what was left out."""

    shown: tuple[Strip, ...]
    parting: tuple[str, ...]  # further groups in which ranks diverge
    agreeing: tuple[str, ...]  # groups in which all ranks agree
    left_out: tuple[int, ...]  # ranks with yet other histories, where there were too many


@dataclass
class _Track:
    """Ranks with the same entries in one group."""

    ranks: list[int]
    entries: dict[int, LoggedCollective]
    is_partial: bool
    is_culprit: bool
    is_blind: bool

    def __post_init__(self) -> None:
        self.first = min(self.entries, default=0)
        self.last = max(self.entries, default=-1)


class _Group:
    """What the ranks of a group called, slot by slot, and where they diverge. Expected is what most ranks called that are not to blame."""

    def __init__(self, name: str, tracks: list[_Track], has_culprits: bool) -> None:
        self.name, self._tracks, self._has_culprits = name, tracks, has_culprits
        self._newest = max(track.last for track in tracks)
        self._oldest = min(track.first for track in tracks if track.entries)
        self.num_ranks = sum(len(track.ranks) for track in tracks)
        self._num_seen = sum(len(track.ranks) for track in tracks if not track.is_blind)
        self._num_there: Counter[int] = Counter()
        calls = [(seq, entry.what, track) for track in tracks for seq, entry in track.entries.items()]
        self._unknown: dict[int, set[str]] = {}  # by slot: properties that were not recorded, which agree with anything
        for seq, what, _ in calls:
            self._unknown.setdefault(seq, set()).update(about for about, value in what.compared().items() if value is None)
        votes: dict[int, Counter[Hashable]] = {}
        for seq, what, track in calls:
            self._num_there[seq] += len(track.ranks)
            # What a culprit called is expected only where no other rank called anything.
            votes.setdefault(seq, Counter())[self._agreement(seq, what)] += len(track.ranks) * (1 if track.is_culprit else 1_000_000)
        self._expected = {seq: counter.most_common(1)[0][0] for seq, counter in votes.items()}
        self._tied = {seq for seq, counter in votes.items() if [*counter.values()].count(max(counter.values())) > 1}
        self.diverges_at = self._first_difference()

    def strip(self) -> Strip:
        last = self._newest if self.diverges_at is None else min(self._newest, self.diverges_at + _AFTER)
        columns = range(max(self._oldest, last - COLUMNS + 1), last + 1)
        rows = self._rows(columns)
        hidden = tuple(rank for row in rows[MAX_ROWS:] for rank in row.ranks)
        is_partial = any(track.is_partial for track in self._tracks)
        return Strip(self.name, columns, tuple(rows[:MAX_ROWS]), self.diverges_at, is_partial, self._newest - last, hidden)

    def _agreement(self, seq: int, what: Signature) -> Hashable:
        """The properties of a call that the verdict compares, too."""
        return tuple(value for about, value in what.compared().items() if about not in self._unknown[seq])

    def _differs(self, seq: int, entry: LoggedCollective) -> bool:
        return self._agreement(seq, entry.what) != self._expected[seq]

    def _first_difference(self) -> int | None:
        """The first slot where a rank called something else than most, or which a rank never reached."""
        odd = [seq for track in self._tracks for seq, entry in track.entries.items() if self._differs(seq, entry)]
        short = [max(self._oldest, track.last + 1) for track in self._tracks if not track.is_blind and track.last < self._newest]
        return min(odd + short, default=None)

    def _rows(self, columns: range) -> list[TimelineRow]:
        """Tracks that look the same in these columns become one row; where not all fit, culprits and the rarest come first."""
        merged: dict[tuple[tuple[Cell, ...], bool], list[int]] = {}
        for track in self._tracks:
            cells = tuple(self._cell(track, seq) for seq in columns)
            merged.setdefault((cells, track.is_culprit), []).extend(track.ranks)
        rows = [TimelineRow(tuple(sorted(ranks)), cells, culprit) for (cells, culprit), ranks in merged.items()]
        has_room = len(rows) <= MAX_ROWS
        return sorted(rows, key=lambda row: row.ranks if has_room else (not row.is_culprit, len(row.ranks), *row.ranks))

    def _cell(self, track: _Track, seq: int) -> Cell:
        """A cell is odd where a rank that the verdict names differs; where it names none, where a minority does."""
        entry = track.entries.get(seq)
        if entry is not None:
            is_odd = self._differs(seq, entry) and (track.is_culprit if self._has_culprits else seq not in self._tied)
            return Cell("done" if entry.done else "pending", entry.what.op, _in_full(entry.what), is_odd)
        if seq < track.last or track.is_blind:
            return Cell("unknown")
        return Cell("missing", is_odd=track.is_culprit if self._has_culprits else 2 * self._num_there[seq] > self._num_seen)


def build_timeline(reported: ReportedJob) -> Timeline:
    """The groups in which ranks diverge or wait; the largest group where there is none."""
    tracks, left_out = _tracks(reported)
    groups = [_Group(name, tracks[name], bool(reported.culprits)) for name in sorted(tracks, key=lambda name: (len(name), name))]
    waited_in = {wait.group or "" for wait in reported.waiting.values()}
    if waited_in & DEFAULT_GROUPS:
        waited_in |= DEFAULT_GROUPS
    groups.sort(key=lambda one: (one.name not in waited_in, one.diverges_at is None, -one.num_ranks))
    telling = [one for one in groups if one.diverges_at is not None or one.name in waited_in] or groups[:1]
    rest = groups[min(len(telling), MAX_STRIPS) :]
    return Timeline(
        shown=tuple(one.strip() for one in telling[:MAX_STRIPS]),
        parting=tuple(one.name for one in rest if one.diverges_at is not None),
        agreeing=tuple(one.name for one in rest if one.diverges_at is None),
        left_out=tuple(left_out),
    )


def recent_entries(log: CollectiveLog) -> Iterator[LoggedCollective]:
    """Newest last; `send` and `recv` share no slots, and a damaged log may name what is not there."""
    for i in range(max(0, len(log) - _TAIL), len(log)):
        if log.what[i] < len(log.signatures) and log.signatures[log.what[i]].op not in POINT_TO_POINT:
            yield log[i]


def _tracks(reported: ReportedJob) -> tuple[dict[str, list[_Track]], list[int]]:
    """The tracks of every group, and the ranks left out because there were too many kinds of histories."""
    alike, names = _alike(reported)
    members = _members(reported.job, {group for groups in names.values() for group in groups})
    tracks: dict[str, list[_Track]] = {}
    for together in alike[:_MAX_KINDS]:
        example = reported.job.ranks[together[0]]
        histories: dict[str, dict[int, LoggedCollective]] = {name: {} for name in names[together[0]]}
        for entry in recent_entries(example.collectives):
            histories[entry.what.group][entry.seq] = entry
        inside: dict[tuple[str, int | None], list[int]] = {}
        for rank in together:
            for i, group in enumerate(names[rank]):
                inside.setdefault((group, i), []).append(rank)
            for group in members[rank].difference(names[rank]):
                inside.setdefault((group, None), []).append(rank)
        is_blind = not len(example.collectives) and bool(example.blind)
        for (group, index), ranks in inside.items():
            entries = [*histories.values()][index] if index is not None else {}
            track = _Track(ranks, entries, example.collectives.is_partial, together[0] in reported.culprits, is_blind)
            tracks.setdefault(group, []).append(track)
    left_out = [rank for ranks in alike[_MAX_KINDS:] for rank in ranks]
    return {group: some for group, some in tracks.items() if any(track.entries for track in some)}, left_out


def _alike(reported: ReportedJob) -> tuple[list[list[int]], dict[int, tuple[str, ...]]]:
    """Ranks whose recent logs are the same but for the names of their groups, those the findings name first; and these names."""
    merged: dict[Hashable, list[int]] = {}
    names: dict[int, tuple[str, ...]] = {}
    for rank, evidence in sorted(reported.job.ranks.items()):
        names[rank], pattern = _pattern(evidence.collectives)
        merged.setdefault((rank in reported.culprits, bool(evidence.blind), pattern), []).append(rank)
    named = {*reported.culprits, *reported.waiting}
    return sorted(merged.values(), key=lambda ranks: (reported.culprits.isdisjoint(ranks), named.isdisjoint(ranks), -len(ranks))), names


def _pattern(log: CollectiveLog) -> tuple[tuple[str, ...], Hashable]:
    """The groups of the recent entries, and what makes two ranks' recent entries equal whatever their groups are called."""
    what = log.what[-_TAIL:]
    names: dict[str, int] = {}
    used = []
    for i in sorted(set(what)):
        if i < len(log.signatures) and log.signatures[i].op not in POINT_TO_POINT:
            one = log.signatures[i]
            used.append((i, names.setdefault(one.group, len(names)), one.op, one.sizes, one.dtype, one.peer, one.reduce_op))
    return tuple(names), (tuple(used), what.tobytes(), log.seq[-_TAIL:].tobytes(), bytes(log.done[-_TAIL:]))


def _members(job: JobEvidence, seen: set[str]) -> dict[int, set[str]]:
    """Which groups each rank belongs to, where one name always means the same ranks; everyone belongs to the default group."""
    ranks_of: dict[str, set[tuple[int, ...]]] = {}
    for evidence in job.ranks.values():
        for group in evidence.groups:
            ranks_of.setdefault(group.name, set()).add(group.ranks)
    members: dict[int, set[str]] = {rank: set(DEFAULT_GROUPS & seen) for rank in job.ranks}
    for name, ranks in ranks_of.items():
        if len(ranks) == 1 and name in seen:
            for rank in members.keys() & set(*ranks):
                members[rank].add(name)
    return members


def _in_full(what: Signature) -> str:
    peer = f", root {what.peer}" if what.peer is not None else ""
    return f"{what}{peer}{', ' if what.reduce_op else ''}{what.reduce_op}"
