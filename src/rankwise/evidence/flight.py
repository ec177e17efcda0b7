"""Reads torch's flight recorder (its JSON form) and joins it with the probe's calls, which know the user's line."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from typing import Any

from rankwise.evidence.collectives import CollectiveLog, Signature
from rankwise.evidence.records import Call

_DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
_COLLECTIVES = frozenset(
    {
        "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather", "scatter", "reduce_scatter",
        "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier", "monitored_barrier", "all_reduce_coalesced",
        "all_gather_coalesced",
    }
)  # fmt: skip
P2P_MARK = ":p2p"
_P2P_NAME = re.compile(r"(send|recv) \d+(?:->|<-)(\d+)")
_ALIASES = {
    "all_reduce_barrier": "barrier",
    "_all_gather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "allreduce": "all_reduce",
}
_MAX_ENTRIES = 200_000


def read_flight(text: bytes, calls: tuple[Call, ...]) -> CollectiveLog | None:
    """The recorder's entries as a log; None if this is no recorder dump."""
    try:
        dump = json.loads(text)
        entries = dump.get("entries", [])[:_MAX_ENTRIES]
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None
    log = CollectiveLog()
    finder = _CallFinder(calls)
    for entry in entries:
        try:
            (_add_p2p if entry.get("is_p2p") else _add)(log, entry, finder)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError):
            continue
    return log


def log_from_calls(calls: tuple[Call, ...]) -> CollectiveLog:
    """Where torch's record is not to be had: the collectives the user called from Python, numbered by us."""
    log = CollectiveLog(is_partial=True)
    numbers: dict[str, int] = {}
    for call in calls:
        if call.op not in _COLLECTIVES:
            continue
        numbers[call.group] = numbers.get(call.group, 0) + 1
        what = Signature(call.group, call.op, call.sizes, call.dtype, call.peer, call.reduce_op)
        log.add(numbers[call.group], what, call.started_ns, not call.is_open and not call.failed, call.stack)
    return log


def _add(log: CollectiveLog, entry: dict[str, Any], finder: _CallFinder) -> None:
    op = str(entry["profiling_name"]).rsplit(":", 1)[-1]
    op = _ALIASES.get(op, op)
    created = int(entry["time_created_ns"])
    call, parent = finder.around(created)
    sizes = tuple(int(n) for n in (entry.get("input_sizes") or [[]])[0])
    dtype = str((entry.get("input_dtypes") or [""])[0])
    exact = call is not None and call.op == op
    what = Signature(
        group=str(entry["process_group"][0]),
        op=op,
        sizes=sizes,
        dtype=_DTYPES.get(dtype, dtype.lower()),
        peer=call.peer if exact and call else None,
        reduce_op=call.reduce_op if exact and call else "",
    )
    origin = parent.op if parent is not None and parent.op in ("forward", "backward", "ddp") else "user"
    # torch marks an entry a moment after the waiter has gone on: a call that has returned from a barrier is over.
    passed = exact and call is not None and call.op == "barrier" and call.ended_ns > 0 and not call.failed
    done = bool(entry.get("retired")) or entry.get("state") == "completed" or passed
    log.add(int(entry["collective_seq_id"]), what, created, done, call.stack if call else None, origin)


def _add_p2p(log: CollectiveLog, entry: dict[str, Any], finder: _CallFinder) -> None:
    """NCCL records sends and receives too, as `nccl:send 0->1`; they have numbers of their own, so they get a group of their own."""
    match = _P2P_NAME.search(str(entry["profiling_name"]))
    if match is None:
        return
    created = int(entry["time_created_ns"])
    call, _ = finder.around(created)
    what = Signature(f"{entry['process_group'][0]}{P2P_MARK}", match[1], peer=int(match[2]))
    done = bool(entry.get("retired")) or entry.get("state") == "completed"
    log.add(int(entry["p2p_seq_id"]), what, created, done, call.stack if call else None)


class _CallFinder:
    """Finds the innermost call that was open at a moment, and the DDP call around it."""

    def __init__(self, calls: tuple[Call, ...]) -> None:
        self._calls = sorted(calls, key=lambda call: call.started_ns)
        self._starts = [call.started_ns for call in self._calls]

    def around(self, moment_ns: int) -> tuple[Call | None, Call | None]:
        innermost: Call | None = None
        i = bisect_right(self._starts, moment_ns)
        for call in reversed(self._calls[max(0, i - 12) : i]):
            if call.ended_ns and call.ended_ns < moment_ns:
                continue
            innermost = innermost or call
            if call.op in ("forward", "backward", "ddp"):
                return innermost, call
        return innermost, innermost
