"""Reads torch's flight recorder (its JSON form) and joins it with the probe's calls, which know the user's line."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from math import prod
from typing import Any

from rankwise.evidence.collective_log import WRAPPER_CALLS, CollectiveLog, Signature
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
GLOO_MARK = ":gloo"  # ends a group's name for gloo's collectives, where NCCL serves the same group
_P2P_NAME = re.compile(r"(send|recv) \d+(?:->|<-)(\d+)")
_ALIASES = {
    "all_reduce_barrier": "barrier",
    "_all_gather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "allreduce_coalesced": "all_reduce_coalesced",
}
_MAX_ENTRIES = 200_000


def read_flights(dumps: list[bytes], calls: tuple[Call, ...], backend: str = "") -> CollectiveLog | None:
    """The recorders' entries as one log; None if none of these is a recorder dump. `backend` is that of init_process_group."""
    found = [entries for dump in dumps if (entries := _entries_of(dump)) is not None]
    if not found:
        return None
    log, finder = CollectiveLog(), _CallFinder(calls)
    whole = [entry for entries in found for entry in _settled(entries)]
    for entry in sorted(whole, key=lambda entry: int(entry["time_created_ns"])) if len(found) > 1 else whole:
        try:
            created = int(entry["time_created_ns"])
            (_add_p2p if entry.get("is_p2p") else _add)(log, entry, created, finder.around(created), "nccl" in backend)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError):
            continue
    return log


def _entries_of(text: bytes) -> list[dict[str, Any]] | None:
    try:
        entries = json.loads(text).get("entries", [])[:_MAX_ENTRIES]
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None
    return [entry for entry in entries if isinstance(entry, dict) and str(entry.get("time_created_ns", "")).isdecimal()]


def _settled(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries, with all parts marked as done of calls that NCCL runs as one (a batch of transfers, a gather of uneven parts).

    NCCL itself marks only the entry at the end of such a call.
    """
    found: list[dict[str, Any]] = []
    for entry in entries:
        if not str(entry.get("profiling_name", "")).endswith("coalesced") or entry.get("input_sizes"):
            found.append(entry)
            continue
        slot = _slot_of(entry)
        members = []
        while found and _slot_of(found[-1]) == slot:
            members.append(found.pop())
        state: dict[str, Any] = {key: entry[key] for key in ("state", "retired") if key in entry}
        if members and (members[0].get("is_p2p") or len(members) == 1):
            found += [{**member, **state} for member in reversed(members)]
        else:
            name = str(entry["profiling_name"]).removesuffix("_coalesced").lower()
            found.append({**(members[-1] if members else entry), **state, "profiling_name": name, "input_sizes": []})
    return found


def _slot_of(entry: dict[str, Any]) -> tuple[str, Any, Any]:
    return str(entry.get("process_group")), entry.get("collective_seq_id"), entry.get("p2p_seq_id")


def log_from_calls(calls: tuple[Call, ...]) -> CollectiveLog:
    """A log made of the collectives the user called from Python, numbered by us, for a rank without torch's record."""
    log = CollectiveLog(is_partial=True)
    numbers: dict[str, int] = {}
    for call in calls:
        if call.op not in _COLLECTIVES:
            continue
        numbers[call.group] = numbers.get(call.group, 0) + 1
        what = Signature(call.group, call.op, call.sizes, call.dtype, call.peer, call.reduce_op)
        log.add(numbers[call.group], what, call.started_ns, not call.is_open and not call.failed, call.stack)
    return log


def _sizes_of(given: list[list[int]], op: str) -> tuple[int, ...]:
    """The shape of the first tensor; for several tensors that are sent as one, the total number of elements."""
    if op.endswith("coalesced"):
        return (sum(prod(int(n) for n in shape) for shape in given),)
    return tuple(int(n) for n in given[0])


def base_group(group: str) -> str:
    """The group's name in torch, without our mark for a second backend (each backend numbers the collectives of a group by itself)."""
    return group.removesuffix(P2P_MARK).removesuffix(GLOO_MARK)


def _group_of(entry: dict[str, Any], is_on_nccl: bool) -> str:
    is_gloo = is_on_nccl and str(entry["profiling_name"]).startswith("gloo:")
    return str(entry["process_group"][0]) + (GLOO_MARK if is_gloo else "")


def _add(log: CollectiveLog, entry: dict[str, Any], created: int, call: Call | None, is_on_nccl: bool) -> None:
    op = str(entry["profiling_name"]).rsplit(":", 1)[-1]
    op = _ALIASES.get(op, op)
    sizes = _sizes_of(entry.get("input_sizes") or [[]], op)
    dtype = str((entry.get("input_dtypes") or [""])[0])
    exact = call is not None and call.op == op
    what = Signature(
        group=_group_of(entry, is_on_nccl),
        op=op,
        sizes=sizes,
        dtype=_DTYPES.get(dtype, dtype.lower()),
        peer=call.peer if exact and call else None,
        reduce_op=call.reduce_op if exact and call else "",
    )
    # DDP makes its own collectives in C++, so a collective called from Python inside a forward or backward is the user's.
    origin = call.op if call is not None and call.op in WRAPPER_CALLS else "user"
    # torch marks an entry a moment after the waiter has gone on: a call that has returned from a barrier is over.
    passed = exact and call is not None and call.op == "barrier" and call.ended_ns > 0 and not call.failed
    done = _is_done(entry) or passed
    log.add(int(entry["collective_seq_id"]), what, created, done, call.stack if call else None, origin)


def _add_p2p(log: CollectiveLog, entry: dict[str, Any], created: int, call: Call | None, _is_on_nccl: bool) -> None:
    """NCCL records sends and receives too, as `nccl:send 0->1`; they have numbers of their own, so they get a group of their own."""
    match = _P2P_NAME.search(str(entry["profiling_name"]))
    if match is None:
        return
    what = Signature(f"{entry['process_group'][0]}{P2P_MARK}", match[1], peer=int(match[2]))
    log.add(int(entry["p2p_seq_id"]), what, created, _is_done(entry), call.stack if call else None)


def _is_done(entry: dict[str, Any]) -> bool:
    return bool(entry.get("retired")) or entry.get("state") == "completed"


class _CallFinder:
    """Finds the innermost call that was open at a moment."""

    def __init__(self, calls: tuple[Call, ...]) -> None:
        self._calls = sorted(calls, key=lambda call: call.started_ns)
        self._starts = [call.started_ns for call in self._calls]

    def around(self, moment_ns: int) -> Call | None:
        i = bisect_right(self._starts, moment_ns)
        open_ones = (call for call in reversed(self._calls[max(0, i - 12) : i]) if not call.ended_ns or call.ended_ns >= moment_ns)
        return next(open_ones, None)
