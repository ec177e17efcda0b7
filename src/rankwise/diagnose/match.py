"""Compares the collectives of all ranks slot by slot: the first slot they disagree on, and who has not arrived in the last."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from rankwise.evidence.collectives import CollectiveLog, Entry, Signature
from rankwise.evidence.flight import P2P_MARK, log_from_calls
from rankwise.evidence.records import JobEvidence

_SAME_SIZE = frozenset({"all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "gather"})
_ROOTED = frozenset({"broadcast", "scatter", "reduce", "gather"})


@dataclass(frozen=True)
class Conflict:
    """One slot of one group in which ranks did different things. about: op, size, dtype, src or reduce_op."""

    group: str
    seq: int
    about: str
    entries: dict[int, Entry] = field(default_factory=dict)

    def by_value(self) -> dict[str, list[int]]:
        """The ranks behind each of the values that differ, largest group first."""
        values: dict[str, list[int]] = {}
        for rank, entry in sorted(self.entries.items()):
            values.setdefault(value_of(entry.what, self.about), []).append(rank)
        return dict(sorted(values.items(), key=lambda item: -len(item[1])))


def find_conflict(job: JobEvidence) -> Conflict | None:
    """The earliest conflict, over all groups; None where all ranks agree on every slot they share."""
    whole = {rank: e.collectives for rank, e in job.ranks.items() if len(e.collectives) and not e.collectives.is_partial}
    found = _earliest(whole)
    if found is not None or len(whole) == len(job.ranks):
        return found
    # A rank that died at once left no recorder dump: compare what all ranks called from Python instead. Our own numbering starts
    # at the ring's oldest call, so this holds only while no ring has overflowed.
    if any(_overflowed(job, rank) for rank in job.ranks):
        return None
    return _earliest({rank: log_from_calls(e.calls) for rank, e in job.ranks.items() if e.calls})


def _earliest(logs: dict[int, CollectiveLog]) -> Conflict | None:
    groups = sorted({group for log in logs.values() for group in log.groups() if not group.endswith(P2P_MARK)})
    found = [conflict for group in groups if (conflict := _first_conflict(group, logs)) is not None]
    return min(found, key=lambda conflict: min(entry.created_ns for entry in conflict.entries.values()), default=None)


def last_seq(log: CollectiveLog, group: str) -> int:
    """The number of the last collective a rank entered in a group; 0 for none."""
    ids = {i for i, signature in enumerate(log.signatures) if signature.group == group}
    return next((log.seq[i] for i in range(len(log) - 1, -1, -1) if log.what[i] in ids), 0) if ids else 0


def op_at(log: CollectiveLog, group: str, seq: int) -> str:
    """What a rank called in a slot; empty if it is not in the log (any more)."""
    entry = _at(log, group, seq)
    return entry.what.op if entry is not None else ""


def value_of(what: Signature, about: str) -> str:
    return {
        "op": what.op,
        "size": f"{what.op}{list(what.sizes)}",
        "dtype": what.dtype,
        "src": f"src={what.peer}",
        "reduce_op": what.reduce_op,
    }[about]


def _overflowed(job: JobEvidence, rank: int) -> bool:
    stored = (count for op, count in job.ranks[rank].counts.items() if op not in ("next_batch", "end_of_data"))
    return sum(stored) > len(job.ranks[rank].calls)


@dataclass(frozen=True)
class _Pattern:
    """What some ranks did in one group, alike to the last slot: numbers, signatures (as indices into a shared table), places in the log."""

    seqs: array[int]
    whats: array[int]
    places: Sequence[int]
    ranks: list[int]

    def index_of(self, seq: int) -> int | None:
        guess = seq - self.seqs[0]  # numbers run without gaps, nearly always
        if 0 <= guess < len(self.seqs) and self.seqs[guess] == seq:
            return guess
        return self.seqs.index(seq) if seq in self.seqs else None


def _first_conflict(group: str, logs: dict[int, CollectiveLog]) -> Conflict | None:
    """Compares pattern with pattern, not rank with rank: thousands of ranks have a handful of patterns."""
    table: dict[Signature, int] = {}
    patterns = _patterns(group, logs, table)
    signatures = list(table)
    if len(patterns) < 2:
        return None
    reference, *others = patterns
    parted = [seq for other in others if (seq := _parting(reference, other, signatures)) is not None]
    if not parted:
        return None
    seq = min(parted)
    entries: dict[int, Entry] = {}
    for pattern in patterns:
        index = pattern.index_of(seq)
        if index is not None:
            entries |= {rank: logs[rank][pattern.places[index]] for rank in pattern.ranks}
    about = _difference([signatures[p.whats[i]] for p in patterns if (i := p.index_of(seq)) is not None])
    return Conflict(group, seq, about, dict(sorted(entries.items())))


def _patterns(group: str, logs: dict[int, CollectiveLog], table: dict[Signature, int]) -> list[_Pattern]:
    """The distinct patterns of a group, that of most ranks first."""
    found: dict[tuple[bytes, bytes], _Pattern] = {}
    for rank, log in logs.items():
        numbers = {i: table.setdefault(what, len(table)) for i, what in enumerate(log.signatures) if what.group == group}
        if not numbers:
            continue
        places: Sequence[int] = range(len(log))
        seqs, whats = log.seq, log.what
        if len(numbers) < len(log.signatures):
            places = [i for i, what in enumerate(log.what) if what in numbers]
            seqs, whats = array("I", (log.seq[i] for i in places)), array("I", (log.what[i] for i in places))
        whats = array("I", map(numbers.__getitem__, whats))
        if len(seqs):
            key = (seqs.tobytes(), whats.tobytes())
            found.setdefault(key, _Pattern(seqs, whats, places, [])).ranks.append(rank)
    return sorted(found.values(), key=lambda pattern: -len(pattern.ranks))


def _parting(a: _Pattern, b: _Pattern, signatures: list[Signature]) -> int | None:
    """The first number at which two patterns disagree, over the slots both have."""
    first, last = max(a.seqs[0], b.seqs[0]), min(a.seqs[-1], b.seqs[-1])
    i, j = a.index_of(first), b.index_of(first)
    if i is not None and j is not None:
        n = last - first + 1
        if a.whats[i : i + n] == b.whats[j : j + n] and a.seqs[i : i + n] == b.seqs[j : j + n]:
            return None
    for seq in range(first, last + 1):
        i, j = a.index_of(seq), b.index_of(seq)
        if i is not None and j is not None and a.whats[i] != b.whats[j] and _difference([signatures[a.whats[i]], signatures[b.whats[j]]]):
            return seq
    return None


def _at(log: CollectiveLog, group: str, seq: int) -> Entry | None:
    for i in range(len(log) - 1, -1, -1):
        if log.seq[i] == seq and log.signatures[log.what[i]].group == group:
            return log[i]
    return None


def _difference(known: list[Signature]) -> str:
    """What the calls of one slot disagree about; empty if nothing. What is not known of a call agrees with anything."""
    ops = {what.op for what in known}
    if len(ops) > 1:
        return "op"
    op = next(iter(ops), "")
    if op in _SAME_SIZE and len({prod(what.sizes) for what in known}) > 1:
        return "size"
    if op in _SAME_SIZE and len({what.dtype for what in known if what.dtype}) > 1:
        return "dtype"
    if op in _ROOTED and len({what.peer for what in known if what.peer is not None}) > 1:
        return "src"
    return "reduce_op" if len({what.reduce_op for what in known if what.reduce_op}) > 1 else ""
