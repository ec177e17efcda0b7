"""The rank that keeps the others waiting, found by the order of arrival at collectives, and what it does meanwhile."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from statistics import median

from rankwise.causes import load_cause
from rankwise.diagnose.rank_state import last_call_frame, place_at
from rankwise.diagnose.wording import seconds_text
from rankwise.evidence.audit import Times, total_times
from rankwise.evidence.collective_log import CollectiveLog
from rankwise.evidence.frames import user_frame
from rankwise.evidence.records import Frame, JobEvidence, RankEvidence
from rankwise.findings import Finding

_SLOTS = 20  # the least number of collectives from which a straggler can be told
_TELLING = 10  # so many of them have to show a difference
_LATE_S = 0.008
_LATE_ALONE_S = 0.05  # where no part of the step is longer than the others'; a core shared with another program costs up to 20 ms
_USUALLY = 0.85  # chance, on a busy machine, makes a rank the last in three of four
_PARTS = ("data", "forward", "optimizer", "save", "other")
_WORDS = {
    "data": "waiting for its data",
    "forward": "in the forward",
    "backward": "in the backward, which is as long on the others because they wait in theirs",
    "optimizer": "in the optimizer's step",
    "save": "writing checkpoints",
    "other": "in code between them",
}


@dataclass(frozen=True)
class _Lag:
    """Who comes last, how often, and how much after the first of the others."""

    rank: int
    times: int
    seen: int
    late_s: float
    since_ns: int


def find_straggler(job: JobEvidence) -> Finding | None:
    """The rank that arrives last again and again; None on several hosts, because their clocks are not comparable."""
    if len({e.host for e in job.ranks.values()}) != 1 or len(job.ranks) < 2:
        return None
    lag = _find_lag({rank: _arrivals(e.collectives) for rank, e in job.ranks.items()})
    if lag is None or _has_joined(job, lag.rank, lag.since_ns):
        return None
    part = _slow_part(job, lag.rank, lag.late_s)
    if part not in _PARTS and lag.late_s < _LATE_ALONE_S:
        return None
    frame = _busy_at(job.ranks[lag.rank], part)
    late = seconds_text(lag.late_s) if lag.late_s >= 1 else f"{lag.late_s * 1000:.0f} ms"
    doing = f"; it spends that time {_WORDS[part]}" if part else ""
    return load_cause("RW503").finding(
        f"rank {lag.rank} is a straggler: it arrives last in {lag.times} of {lag.seen} collectives, {late} after the others, "
        f"which are slowed down to its pace (slower rank)",
        certain=True,
        culprits=(place_at(job.ranks[lag.rank], frame),),
        why=f"the others wait for it in every collective{doing}. Without it a step would be up to {late} shorter"
        + (": " + _compared(job, part) if part in _PARTS else ""),
    )


def slow_rank(job: JobEvidence) -> int | None:
    """While the job runs: the rank that is busy much longer than the others between two steps, by its own clock."""
    totals = {rank: total for rank, e in job.ranks.items() if (total := total_times(e.audit.times, 3)) is not None}
    # A step's time without the backward, in which all wait for the slowest.
    busy = {rank: (total.wall - total.backward - total.collective) / total.steps for rank, total in totals.items()}
    if len(busy) < 2 or len(busy) < len(job.ranks):
        return None
    rank = max(busy, key=lambda r: busy[r])
    others = median(ms for r, ms in busy.items() if r != rank)
    return rank if busy[rank] > others + max(1e3 * _LATE_S, 0.2 * others) else None


def _find_lag(arrivals: dict[int, dict[int, int]]) -> _Lag | None:
    """Who comes last, by the collectives at which ranks arrive apart; after the first one of a step they arrive together."""
    shared = sorted(set.intersection(*(set(times) for times in arrivals.values())))[-200:]
    if len(shared) < _SLOTS:
        return None
    delays = {slot: _delay(arrivals, slot, before) for before, slot in itertools.pairwise(shared)}
    usual = sorted(late for _, late in delays.values())[int(0.9 * len(delays))]
    telling = {slot: (rank, late) for slot, (rank, late) in delays.items() if late >= 0.5 * usual}
    rank, times = Counter(rank for rank, _ in telling.values()).most_common(1)[0]
    late_s = median(late if last == rank else 0 for last, late in telling.values()) / 1e9
    spacing_s = (arrivals[rank][shared[-1]] - arrivals[rank][shared[0]]) / 1e9 / (len(shared) - 1)
    if len(telling) < _TELLING or times < _USUALLY * len(telling) or late_s < max(_LATE_S, 0.2 * spacing_s):
        return None
    return _Lag(rank, times, len(telling), late_s, arrivals[rank][shared[0]])


def _delay(arrivals: dict[int, dict[int, int]], slot: int, before: int) -> tuple[int, int]:
    """Who came last to a collective, and how much later than the first of the others.

    On a GPU nobody waits at the call itself: a rank that was held up once stays behind in all calls after it. So it is late by no more
    than the time since its own last collective.
    """
    rank = max(arrivals, key=lambda r: arrivals[r][slot])
    first = min(times[slot] for r, times in arrivals.items() if r != rank)
    return rank, arrivals[rank][slot] - max(first, arrivals[rank][before])


def _has_joined(job: JobEvidence, rank: int, since_ns: int) -> bool:
    """Whether the rank has run out of data and only answers the others' collectives (torch's Join): it makes no forward of its own."""
    forwards = {r: [call for call in e.calls if call.op == "forward" and call.started_ns >= since_ns] for r, e in job.ranks.items()}
    return not forwards[rank] and any(forwards.values())


def _arrivals(log: CollectiveLog) -> dict[int, int]:
    """When each of the last collectives of the default group was entered, by its number."""
    ids = {i for i, signature in enumerate(log.signatures) if signature.group == "0"}
    recent = range(max(0, len(log) - 400), len(log))
    return {} if log.is_partial else {log.seq[i]: log.created_ns[i] for i in recent if log.what[i] in ids}


def _per_step(total: Times, part: str) -> float:
    if part == "other":
        known = total.data + total.forward + total.backward + total.optimizer + total.collective + total.save
        return (total.wall - known) / total.steps
    return float(getattr(total, part)) / total.steps


def _slow_part(job: JobEvidence, rank: int, late_s: float) -> str:
    """The part of a step in which the straggler takes longer than the others; "backward" where no other part differs."""
    totals = {r: total for r, e in job.ranks.items() if (total := total_times(e.audit.times)) is not None}
    if rank not in totals or len(totals) < 2:
        return ""
    more = {
        part: _per_step(totals[rank], part) - median(_per_step(total, part) for r, total in totals.items() if r != rank)
        for part in (*_PARTS, "backward")
    }  # fmt: skip
    part, least = max(_PARTS, key=lambda name: more[name]), 0.4 * late_s * 1e3
    if more[part] >= least:
        return part
    # The others wait in their backward, so a rank that is slow there takes as long as they do; on a GPU it holds what was queued before.
    return "backward" if _per_step(totals[rank], "backward") >= least and more["backward"] > -0.5 * least else ""


def _compared(job: JobEvidence, part: str) -> str:
    totals = {r: total for r, e in job.ranks.items() if (total := total_times(e.audit.times)) is not None}
    return ", ".join(f"rank {r} {_per_step(total, part):.0f} ms" for r, total in list(totals.items())[:8]) + f" a step {_WORDS[part]}"


def _busy_at(evidence: RankEvidence, part: str) -> Frame | None:
    """The line at which the rank was seen most often; else where that part of the step begins; else its last call.

    For code between the parts that is the line of the optimizer's step.
    """
    seen = Counter(frame for stack in evidence.glimpses if (frame := user_frame(stack)) is not None)
    if seen:
        function, _ = Counter((frame.file, frame.function) for frame in seen.elements()).most_common(1)[0]
        return max((frame for frame in seen if (frame.file, frame.function) == function), key=lambda frame: seen[frame])
    audit = evidence.audit
    sites = {
        "data": [one.site for one in audit.passes],
        "forward": [one.site for one in audit.forwards],
        "backward": [site for one in audit.windows for site in one.places.values()],
        "optimizer": [one.site for one in audit.optimizers],
        "save": [one.site for one in audit.writes],
        "other": [one.site for one in audit.optimizers],
    }
    known = sites.get(part)
    return (user_frame(audit.sites.get(known[-1], ())) if known else None) or last_call_frame(evidence)
