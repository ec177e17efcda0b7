"""`--profile`: one trace of all ranks of this host, on one clock, in the format that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankwise.evidence.frames import user_frame
from rankwise.evidence.records import Call, JobEvidence, RankEvidence
from rankwise.files import write_whole

_MAX_BYTES = 64 << 20
_LANES = {"data": 1, "forward": 2, "backward": 3, "optimizer": 4, "collective": 5, "save": 6, "arrival": 7}
_NO_SPANS = ("forward", "backward", "pass_start", "pass_end", "next_batch", "end_of_data", "ddp")  # shown as parts of a step, or too short


def write_trace(path: Path, live: Path, job: JobEvidence) -> None:
    events = [event for rank, evidence in sorted(job.ranks.items()) for event in _events_of(rank, evidence, live, job.started_ns)]
    write_whole(path, json.dumps({"displayTimeUnit": "ms", "traceEvents": events}), is_private=True)


def _events_of(rank: int, evidence: RankEvidence, live: Path, began_ns: int) -> Iterator[dict[str, Any]]:
    """A rank is a process of the trace; each part of its steps has a lane."""
    yield {"ph": "M", "pid": rank, "tid": 0, "name": "process_name", "args": {"name": f"rank {rank} ({evidence.host}, pid {evidence.pid})"}}
    yield {"ph": "M", "pid": rank, "tid": 0, "name": "process_sort_index", "args": {"sort_index": rank}}
    for name, lane in _LANES.items():
        yield {"ph": "M", "pid": rank, "tid": lane, "name": "thread_name", "args": {"name": name}}
    for part, start_ns, ns in _spans(live / f"trace-{evidence.pid}"):
        if part != "collective":
            yield _span(rank, part, part, start_ns, ns, began_ns, {})
    for call in evidence.calls:
        if call.ended_ns and call.op not in _NO_SPANS:
            yield _span(rank, "collective", call.op, call.started_ns, call.ended_ns - call.started_ns, began_ns, _facts(call))
    for entry in evidence.collectives:
        arguments = {"seq": entry.seq, "group": entry.what.group, "size": list(entry.what.sizes), "from": entry.origin}
        moment = {"ph": "i", "s": "t", "pid": rank, "tid": _LANES["arrival"], "cat": "arrival", "args": arguments}
        yield {**moment, "name": f"{entry.what.op} #{entry.seq}", "ts": (entry.created_ns - began_ns) / 1e3}


def _span(rank: int, lane: str, name: str, start_ns: int, ns: int, began_ns: int, arguments: dict[str, Any]) -> dict[str, Any]:
    at, took = (start_ns - began_ns) / 1e3, ns / 1e3
    return {"ph": "X", "pid": rank, "tid": _LANES[lane], "name": name, "cat": lane, "ts": at, "dur": took, "args": arguments}


def _facts(call: Call) -> dict[str, Any]:
    frame = user_frame(call.stack)
    return {"group": call.group, "size": list(call.sizes), "line": f"{frame.file}:{frame.line}" if frame else ""}


def _spans(path: Path) -> Iterator[tuple[str, int, int]]:
    """What the probe wrote; a last line that was cut off is left out."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode("ascii", errors="replace")
    except OSError:
        return
    for line in text.split("\n")[:-1]:
        part, _, rest = line.partition(" ")
        start, _, ns = rest.partition(" ")
        if part in _LANES and start.isdecimal() and ns.isdecimal():
            yield part, int(start), int(ns)
