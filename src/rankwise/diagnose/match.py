"""Compares the collectives of all ranks slot by slot: the first slot they disagree on, and who has not arrived in the last."""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, field

from rankwise.evidence.collective_log import CollectiveLog, LoggedCollective, Signature
from rankwise.evidence.flight import P2P_MARK, log_from_calls
from rankwise.evidence.records import JobEvidence, Stack


@dataclass(frozen=True)
class Conflict:
    """One slot of one group in which ranks did different things. about: op, size, dtype, src or reduce_op."""

    group: str
    seq: int
    about: str
    entries: dict[int, LoggedCollective] = field(default_factory=dict)
    stacks: dict[int, Stack] = field(default_factory=dict)

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


def _first_conflict(group: str, logs: dict[int, CollectiveLog]) -> Conflict | None:
    """The first slot of a group in which ranks differ. Ranks with equal records are looked at once: thousands of ranks have few patterns."""
    table: dict[Signature, int] = {}
    in_slot: defaultdict[int, set[int]] = defaultdict(set)  # slot: what was called in it
    for seqs, whats in {_pattern(group, log, table) for log in logs.values()}:
        for seq, what in zip(array("I", seqs), array("I", whats)):
            in_slot[seq].add(what)
    signatures = list(table)
    for seq in sorted(seq for seq, whats in in_slot.items() if len(whats) > 1):
        if not _difference([signatures[what] for what in in_slot[seq]]):
            continue
        entries = {rank: entry for rank, log in sorted(logs.items()) if (entry := _at(log, group, seq)) is not None}
        if about := _difference([entry.what for entry in entries.values()]):  # damaged evidence may hold a slot twice
            return Conflict(group, seq, about, entries, {rank: logs[rank].stack_of(entry) for rank, entry in entries.items()})
    return None


def _pattern(group: str, log: CollectiveLog, table: dict[Signature, int]) -> tuple[bytes, bytes]:
    """The numbers and the signatures (as indices into a shared table) of what one rank did in a group."""
    numbers = {i: table.setdefault(what, len(table)) for i, what in enumerate(log.signatures) if what.group == group}
    seqs, whats = log.seq, log.what
    if len(numbers) < len(log.signatures):
        places = [i for i, what in enumerate(log.what) if what in numbers]
        seqs, whats = array("I", (log.seq[i] for i in places)), array("I", (log.what[i] for i in places))
    return seqs.tobytes(), array("I", map(numbers.__getitem__, whats)).tobytes()


def _at(log: CollectiveLog, group: str, seq: int) -> LoggedCollective | None:
    for i in range(len(log) - 1, -1, -1):
        if log.seq[i] == seq and log.signatures[log.what[i]].group == group:
            return log[i]
    return None


def _difference(known: list[Signature]) -> str:
    """What the calls of one slot disagree about; empty if nothing. What is not known of a call agrees with anything."""
    compared = [what.compared() for what in known]
    return next((about for about in compared[0] if len({one[about] for one in compared} - {None}) > 1), "") if compared else ""
