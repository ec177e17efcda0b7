"""Reads the probe's ring of calls: fixed slots in shared memory, written by a process that may be dead or in the middle of a write."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, replace
from pathlib import Path

from rankwise.evidence.journal import Journal
from rankwise.evidence.records import Call

_HEADER = struct.Struct("<4sIIIQQ")
_SLOT = struct.Struct("<QQQIHHiIIBB2x5i4x")
_WITH_SPLITS = ("all_to_all", "all_to_all_single")
_NUM_SPLITS, _MOST_PEERS = 64, 64
_SPLITS = struct.Struct(f"<QQ{2 * _MOST_PEERS}I")
_MAX_SIZE = 4 << 20
_FEW = 100


@dataclass(frozen=True)
class RingView:
    """A ring at one moment: how far it got, how often each operation was called, and the last calls in order."""

    head: int
    counts: dict[str, int]
    calls: tuple[Call, ...]


class RingWindow:
    """A ring that stays mapped, to check many times a second whether it has moved."""

    def __init__(self, path: Path, num_ops: int) -> None:
        self._size = _HEADER.size + 8 * num_ops
        self._map: mmap.mmap | None = None
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), self._size, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            pass

    def head(self) -> int:
        """How many calls were begun so far."""
        return int(_HEADER.unpack_from(self._map)[4]) if self._map is not None else 0

    def marks(self) -> bytes:
        """The head and the counters: different whenever something moved."""
        return self._map[: self._size] if self._map is not None else b""


def read_ring(path: Path, journal: Journal, is_brief: bool = False) -> RingView | None:
    """The ring, with numbers turned back into names through the journal; None where the file is missing or no ring.

    In brief, only the last calls of a process that trains are read; of one that makes no backward all, because RW784 adds up their times.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_SIZE)
    except OSError:
        return None
    if len(data) < _HEADER.size:
        return None
    magic, slot_size, capacity, num_ops, head, _ = _HEADER.unpack_from(data)
    first = _HEADER.size + 8 * num_ops
    if magic != b"RWR1" or slot_size != _SLOT.size or len(data) < first + capacity * slot_size or num_ops > 4096:
        return None
    counts = {op: struct.unpack_from("<Q", data, _HEADER.size + 8 * i)[0] for i, op in enumerate(journal.ops[:num_ops])}
    splits = _read_splits(data, first + capacity * slot_size) if any(counts.get(op) for op in _WITH_SPLITS) else {}
    calls = []
    for n in range(max(0, head - (_FEW if is_brief and counts.get("backward") else capacity)), head):
        call = _read_slot(data, first + (n % capacity) * slot_size, n, journal)
        if call is not None:
            sent, expected = splits.get(n, ((), ())) if call.op.startswith("all_to_all") else ((), ())
            calls.append(replace(call, sent=sent, expected=expected) if sent else call)
    return RingView(head, {op: count for op, count in counts.items() if count}, tuple(calls))


def _read_splits(data: bytes, first: int) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
    """By number of the call: how much each all_to_all sends to every rank of its group, and how much it expects from each."""
    found = {}
    for offset in range(first, min(len(data) - _SPLITS.size, first + (_NUM_SPLITS - 1) * _SPLITS.size) + 1, _SPLITS.size):
        number, num, *counts = _SPLITS.unpack_from(data, offset)
        if number and num <= _MOST_PEERS:
            found[number - 1] = (tuple(counts[:num]), tuple(counts[_MOST_PEERS : _MOST_PEERS + num]))
    return found


def _read_slot(data: bytes, offset: int, n: int, journal: Journal) -> Call | None:
    number, started, ended, site, op, dtype, peer, group, reduce_op, failed, helper, dims, *sizes = _SLOT.unpack_from(data, offset)
    if number != n + 1 or op >= len(journal.ops):
        return None  # being written right now, or used again meanwhile
    return Call(
        op=journal.ops[op],
        started_ns=started,
        ended_ns=ended,
        stack=journal.sites.get(site, ()),
        group=journal.names.get(group, "0"),
        sizes=tuple(sizes[: min(dims, 4)]),
        dtype=journal.names.get(dtype, "").removeprefix("torch."),
        peer=peer if peer >= 0 else None,
        reduce_op=journal.names.get(reduce_op, "").rsplit(".", 1)[-1],
        failed=bool(failed),
        by_helper=bool(helper),
    )
