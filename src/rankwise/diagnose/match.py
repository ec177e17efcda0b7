"""Compares the collectives of all ranks slot by slot: the first slot they disagree on, and who has not arrived in the last."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from rankwise.evidence.collectives import CollectiveLog, Entry, Signature
from rankwise.evidence.flight import log_from_calls
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
    groups = sorted({group for log in logs.values() for group in log.groups()})
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


def _first_conflict(group: str, logs: dict[int, CollectiveLog]) -> Conflict | None:
    members = [rank for rank, log in logs.items() if group in log.groups()]
    if len(members) < 2:
        return None
    reference = logs[members[0]]
    odd = [rank for rank in members[1:] if not _same_throughout(reference, logs[rank])]
    if not odd:
        return None
    slots = {rank: {entry.seq: entry for entry in logs[rank].of_group(group)} for rank in [members[0], *odd]}
    first = max(min(entries) for entries in slots.values() if entries)
    last = max(max(entries) for entries in slots.values() if entries)
    for seq in range(first, last + 1):
        present = {rank: entries[seq] for rank, entries in slots.items() if seq in entries}
        about = _difference(list(present.values()))
        if about:
            same = {rank: entry for rank in members if rank not in present and (entry := _at(logs[rank], group, seq)) is not None}
            return Conflict(group, seq, about, {**present, **same})
    return None


def _same_throughout(a: CollectiveLog, b: CollectiveLog) -> bool:
    """Fast path, decisive at thousands of ranks: same tables, same arrays over the part both have."""
    return a.signatures == b.signatures and a.what == b.what and a.seq == b.seq


def _at(log: CollectiveLog, group: str, seq: int) -> Entry | None:
    for i in range(len(log) - 1, -1, -1):
        if log.seq[i] == seq and log.signatures[log.what[i]].group == group:
            return log[i]
    return None


def _difference(entries: list[Entry]) -> str:
    """What the entries of one slot disagree about; empty if nothing."""
    known = [entry.what for entry in entries]
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
