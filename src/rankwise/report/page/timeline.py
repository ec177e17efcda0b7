"""The last collectives of every rank, slot by slot: which ranks agree, which called something else, which never came.

Pure: arrays in, strips out. Ranks with the same log are looked at once, so 4,096 ranks cost about as much as the few ways they differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Literal

from rankwise.evidence.collectives import CollectiveLog, Entry
from rankwise.evidence.records import JobEvidence
from rankwise.report.page.reported_job import ReportedJob
from rankwise.report.places import DEFAULT_GROUPS

COLUMNS = 40
MAX_ROWS = 24
MAX_STRIPS = 5
_AFTER = 11  # columns kept to the right of the divergence, so that it is in sight on a phone
_TAIL = 256  # entries of a rank that are looked at
_MAX_KINDS = 256  # of histories
POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv"})
_SAME_SHAPE = ("all_reduce", "allreduce", "broadcast", "reduce", "all_gather", "allgather")

CellState = Literal["done", "pending", "missing", "unknown"]


@dataclass(frozen=True)
class Cell:
    """One rank's collective in one slot; `missing` means it never came, `unknown` that it was not recorded."""

    state: CellState
    op: str = ""
    what: str = ""
    is_odd: bool = False  # not what the innocent ranks called in this slot, or where nobody is named, not what most did


@dataclass(frozen=True)
class Row:
    ranks: tuple[int, ...]
    cells: tuple[Cell, ...]
    is_culprit: bool


@dataclass(frozen=True)
class Said:
    """What some ranks did in the slot where they part."""

    ranks: tuple[int, ...]
    what: str  # for a missing one the last it called, or ""
    state: CellState
    stack: tuple[object, ...] = ()
    is_odd: bool = False


@dataclass(frozen=True)
class Strip:
    """One process group's timeline."""

    group: str
    first: int  # sequence number of the first column
    rows: tuple[Row, ...]
    diverges_at: int | None
    said: tuple[Said, ...] = ()
    is_partial: bool = False  # numbered from the Python calls that were seen, not by torch
    num_later: int = 0  # slots after the last column
    hidden: tuple[int, ...] = ()  # ranks that found no room

    @property
    def num_ranks(self) -> int:
        return sum(len(row.ranks) for row in self.rows) + len(self.hidden)

    @property
    def columns(self) -> range:
        return range(self.first, self.first + len(self.rows[0].cells))


@dataclass(frozen=True)
class Timeline:
    """The strips worth drawing, most telling first, and what there was besides."""

    shown: tuple[Strip, ...]
    parting: tuple[str, ...]  # further groups in which ranks part
    agreeing: tuple[str, ...]  # groups in which they do not
    left_out: tuple[int, ...]  # ranks with yet other histories, where there were too many


@dataclass
class _Track:
    """Ranks with the same entries in one group."""

    ranks: list[int]
    log: CollectiveLog
    entries: dict[int, Entry]
    is_culprit: bool
    is_blind: bool
    may_be_odd: bool = True  # an innocent rank is not, where the verdict names others

    def __post_init__(self) -> None:
        self.first = min(self.entries, default=0)
        self.last = max(self.entries, default=-1)


class _Slots:
    """What the ranks of a group called, slot by slot: the majority of the ranks that are not to blame, or of all ranks if none is."""

    def __init__(self, tracks: list[_Track]) -> None:
        calls = [(seq, entry, len(track.ranks)) for track in tracks for seq, entry in track.entries.items()]
        # Roots and reduce operations are compared only if they were seen on all ranks.
        self._vague = {seq for seq, entry, _ in calls if entry.what.peer is None and not entry.what.reduce_op}
        guilty = self._votes([track for track in tracks if track.is_culprit])
        innocent = self._votes([track for track in tracks if not track.is_culprit])
        votes = {**guilty, **innocent}
        self._expected = {seq: counter.most_common(1)[0][0] for seq, counter in votes.items()}
        self._tied = {seq for seq, counter in votes.items() if [*counter.values()].count(max(counter.values())) > 1}

        self._num_ranks = sum(len(track.ranks) for track in tracks if not track.is_blind)
        self._num_there: Counter[int] = Counter()
        for seq, _, count in calls:
            self._num_there[seq] += count

    def _votes(self, tracks: list[_Track]) -> dict[int, Counter[Hashable]]:
        votes: dict[int, Counter[Hashable]] = {}
        for track in tracks:
            for seq, entry in track.entries.items():
                votes.setdefault(seq, Counter())[self._agreement(seq, entry)] += len(track.ranks)
        return votes

    def differs(self, seq: int, entry: Entry) -> bool:
        return self._agreement(seq, entry) != self._expected[seq]

    def is_odd(self, track: _Track, seq: int, entry: Entry) -> bool:
        """Whether this rank is the one to look at; of two that contradict each other neither is, unless the verdict says so."""
        return track.may_be_odd and self.differs(seq, entry) and (track.is_culprit or seq not in self._tied)

    def is_missed(self, track: _Track, seq: int) -> bool:
        """The same for a rank that never came to a slot."""
        return track.may_be_odd and (track.is_culprit or 2 * self._num_there[seq] > self._num_ranks)

    def _agreement(self, seq: int, entry: Entry) -> Hashable:
        """Always the operation; the rest only where torch wants it equal."""
        what = entry.what
        if not what.op.lstrip("_").startswith(_SAME_SHAPE):
            return what.op
        details = () if seq in self._vague else (what.peer, what.reduce_op)
        return what.op, what.sizes, what.dtype, *details


class _Outline:
    """One group before it is drawn: only as much as decides whether it will be."""

    def __init__(self, group: str, tracks: list[_Track]) -> None:
        self.group = group
        self.tracks = tracks
        self.slots = _Slots(tracks)
        self.newest = max(track.last for track in tracks)
        self.oldest = min(track.first for track in tracks if track.entries)
        self.num_ranks = sum(len(track.ranks) for track in tracks)
        self.diverges_at = self._first_difference()

    def _first_difference(self) -> int | None:
        """The first slot where a rank called something else than most, or which a rank never reached."""
        odd = [seq for track in self.tracks for seq, entry in track.entries.items() if self.slots.differs(seq, entry)]
        short = [max(self.oldest, track.last + 1) for track in self.tracks if not track.is_blind and track.last < self.newest]
        return min(odd + short, default=None)


def build_timeline(reported: ReportedJob) -> Timeline:
    """Worth drawing is a group where ranks part or wait; where there is none, the largest group."""
    tracks, left_out = _tracks(reported)
    outlines = [_Outline(group, tracks[group]) for group in sorted(tracks, key=lambda group: (len(group), group))]
    waited_in = {wait.group or "" for wait in reported.waiting.values()}
    outlines.sort(key=lambda one: (not _is_waited_in(one.group, waited_in), one.diverges_at is None, -one.num_ranks))
    telling = [one for one in outlines if one.diverges_at is not None or _is_waited_in(one.group, waited_in)] or outlines[:1]
    rest = outlines[min(len(telling), MAX_STRIPS) :]
    return Timeline(
        shown=tuple(_strip(one) for one in telling[:MAX_STRIPS]),
        parting=tuple(one.group for one in rest if one.diverges_at is not None),
        agreeing=tuple(one.group for one in rest if one.diverges_at is None),
        left_out=tuple(left_out),
    )


def _tracks(reported: ReportedJob) -> tuple[dict[str, list[_Track]], list[int]]:
    """The tracks of every group, and the ranks that were one kind too many."""
    alike, names = _alike(reported)
    members = _members(reported.job, {group for groups in names.values() for group in groups})
    tracks: dict[str, list[_Track]] = {}
    for together in alike[:_MAX_KINDS]:
        example = reported.job.ranks[together[0]]
        log, histories = example.collectives, _entries(example.collectives, names[together[0]])
        is_culprit = not reported.culprits.isdisjoint(together)
        may_be_odd = is_culprit or not reported.culprits
        is_blind = not len(log) and bool(example.blind)
        inside: dict[tuple[str, int | None], list[int]] = {}
        for rank in together:
            for i, group in enumerate(names[rank]):
                inside.setdefault((group, i), []).append(rank)
            for group in members.get(rank, ()):
                if group not in names[rank]:
                    inside.setdefault((group, None), []).append(rank)
        for (group, index), ranks in inside.items():
            entries = histories[index] if index is not None else {}
            tracks.setdefault(group, []).append(_Track(ranks, log, entries, is_culprit, is_blind, may_be_odd))
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


def _entries(log: CollectiveLog, names: tuple[str, ...]) -> list[dict[int, Entry]]:
    groups: dict[str, dict[int, Entry]] = {name: {} for name in names}
    for i in range(max(0, len(log) - _TAIL), len(log)):
        if log.what[i] < len(log.signatures):
            entry = log[i]
            if entry.what.op not in POINT_TO_POINT:
                groups[entry.what.group][entry.seq] = entry
    return list(groups.values())


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


def _strip(one: _Outline) -> Strip:
    tracks, slots, diverges_at = one.tracks, one.slots, one.diverges_at
    last = one.newest if diverges_at is None else min(one.newest, diverges_at + _AFTER)
    first = max(one.oldest, last - COLUMNS + 1)
    rows = _rows(tracks, range(first, last + 1), slots)
    return Strip(
        one.group,
        first,
        tuple(rows[:MAX_ROWS]),
        diverges_at,
        tuple(_said(tracks, diverges_at, slots)) if diverges_at is not None else (),
        any(track.log.is_partial for track in tracks),
        one.newest - last,
        tuple(rank for row in rows[MAX_ROWS:] for rank in row.ranks),
    )


def _rows(tracks: list[_Track], columns: range, slots: _Slots) -> list[Row]:
    """Tracks that look the same in these columns become one row; where not all fit, culprits and the rarest come first."""
    merged: dict[tuple[tuple[Cell, ...], bool], list[int]] = {}
    for track in tracks:
        cells = tuple(_cell(track, seq, slots) for seq in columns)
        merged.setdefault((cells, track.is_culprit), []).extend(track.ranks)
    rows = [Row(tuple(sorted(ranks)), cells, culprit) for (cells, culprit), ranks in merged.items()]
    has_room = len(rows) <= MAX_ROWS
    return sorted(rows, key=lambda row: row.ranks if has_room else (not row.is_culprit, len(row.ranks), *row.ranks))


def _cell(track: _Track, seq: int, slots: _Slots) -> Cell:
    entry = track.entries.get(seq)
    if entry is None:
        is_missing = seq > track.last and not track.is_blind
        return Cell("missing" if is_missing else "unknown", is_odd=is_missing and slots.is_missed(track, seq))
    return Cell("done" if entry.done else "pending", entry.what.op, str(entry.what), slots.is_odd(track, seq, entry))


def _said(tracks: list[_Track], seq: int, slots: _Slots) -> Iterator[Said]:
    """What every set of ranks did in this slot; the ranks that differ come first."""
    merged: dict[Hashable, tuple[list[int], Said]] = {}
    for track in tracks:
        entry = track.entries.get(seq)
        if entry is not None:
            state: CellState = "done" if entry.done else "pending"
            said = Said((), _in_full(entry), state, tuple(track.log.stack_of(entry)), slots.is_odd(track, seq, entry))
        elif track.last < seq and not track.is_blind:
            before = track.entries.get(track.last)
            said = Said((), f"#{track.last} {before.what}" if before else "", "missing", (), slots.is_missed(track, seq))
        else:
            continue
        merged.setdefault((said.what, said.state, said.is_odd), ([], said))[0].extend(track.ranks)
    for ranks, said in sorted(merged.values(), key=lambda item: (not item[1].is_odd, len(item[0]))):
        yield Said(tuple(sorted(ranks)), said.what, said.state, said.stack, said.is_odd)


def _in_full(entry: Entry) -> str:
    what = entry.what
    peer = f", root {what.peer}" if what.peer is not None else ""
    return f"{what}{peer}{', ' if what.reduce_op else ''}{what.reduce_op}"


def _is_waited_in(group: str, waited_in: set[str]) -> bool:
    return group in waited_in or (group in DEFAULT_GROUPS and not DEFAULT_GROUPS.isdisjoint(waited_in))
