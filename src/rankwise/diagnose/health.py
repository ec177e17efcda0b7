"""Notes on jobs that are not broken: slow starts, stragglers, restarts, and what could not be seen."""

from __future__ import annotations

from collections import Counter
from statistics import median

from rankwise.causes import load_cause
from rankwise.diagnose.standing import Standings, place_of
from rankwise.diagnose.wording import seconds_text
from rankwise.evidence.collectives import CollectiveLog
from rankwise.evidence.frames import user_frame
from rankwise.evidence.records import JobEvidence
from rankwise.findings import Finding, ranks_text

_SLOTS = 20  # a straggler is told from at least so many collectives
_LATE_S = 0.05
_SLOW_START_S = 10.0


def find_notes(job: JobEvidence, stands: Standings, *, is_well: bool) -> list[Finding]:
    """Notes never speak of faults; those about pace are only worth it where there is no fault."""
    about_pace = [_slow_start(job, stands), _straggler(job)] if is_well else []
    notes = [*about_pace, _restarted(job), _debug_detail(job), _blind(job)]
    return [note for note in notes if note is not None]


def _slow_start(job: JobEvidence, stands: Standings) -> Finding | None:
    """All ranks have joined, none has come past its first step, and they are at work."""
    joined = [e.inits[-1].ended_ns for e in job.ranks.values() if e.alive and e.inits and e.inits[-1].ended_ns]
    if job.exit_code is not None or not joined or len(joined) < len(job.ranks):
        return None
    since = (job.now_ns - max(joined)) / 1e9
    begun = any(count > 2 for e in job.ranks.values() for op, count in e.counts.items() if op not in ("new_group", "ddp"))
    at_work = all(standing.kind == "elsewhere" for standing in stands.values())
    if begun or not at_work or since < _SLOW_START_S:
        return None
    return load_cause("RW501").finding(f"the first step takes long: {seconds_text(since)} so far, on all ranks", certain=False)


def _straggler(job: JobEvidence) -> Finding | None:
    """Who arrives last at the collectives, again and again; the clocks of different hosts are not comparable."""
    if len({e.host for e in job.ranks.values()}) != 1 or len(job.ranks) < 2:
        return None
    arrivals = {rank: _arrivals(e.collectives) for rank, e in job.ranks.items()}
    shared = sorted(set.intersection(*(set(times) for times in arrivals.values())))[-200:]
    if len(shared) < _SLOTS:
        return None
    last = Counter(max(arrivals, key=lambda rank: arrivals[rank][slot]) for slot in shared)
    rank, times = last.most_common(1)[0]
    if _has_joined(job, rank, arrivals[rank][shared[0]]):
        return None
    others = [min(arrivals[r][slot] for r in arrivals if r != rank) for slot in shared]
    late_s = median((arrivals[rank][slot] - first) / 1e9 for slot, first in zip(shared, others))
    spacing_s = (arrivals[rank][shared[-1]] - arrivals[rank][shared[0]]) / 1e9 / (len(shared) - 1)
    if times < 0.7 * len(shared) or late_s < max(_LATE_S, 0.2 * spacing_s):
        return None
    frame = next((frame for call in reversed(job.ranks[rank].calls) if (frame := user_frame(call.stack))), None)
    return load_cause("RW503").finding(
        f"rank {rank} is a straggler: it arrives last in {times} of {len(shared)} collectives, {seconds_text(late_s) if late_s >= 1 else f'{late_s * 1000:.0f} ms'} "
        f"after the others, which are slowed down to its pace (slower rank)",
        certain=True,
        culprits=(place_of(job.ranks[rank], frame),),
        why="the others wait for it in every collective: it has more work, slower data or a slower machine",
    )


def _has_joined(job: JobEvidence, rank: int, since_ns: int) -> bool:
    """A rank that has run out of data and only answers the others' collectives (torch's Join) makes no forward of its own."""
    forwards = {r: [call for call in e.calls if call.op == "forward" and call.started_ns >= since_ns] for r, e in job.ranks.items()}
    return not forwards[rank] and any(forwards.values())


def _arrivals(log: CollectiveLog) -> dict[int, int]:
    """When each of the last collectives of the default group was entered, by its number."""
    ids = {i for i, signature in enumerate(log.signatures) if signature.group == "0"}
    recent = range(max(0, len(log) - 400), len(log))
    return {} if log.is_partial else {log.seq[i]: log.created_ns[i] for i in recent if log.what[i] in ids}


def _restarted(job: JobEvidence) -> Finding | None:
    if not job.restarts:
        return None
    return load_cause("RW504").finding(f"the workers were restarted {job.restarts} time{'s' if job.restarts > 1 else ''}", certain=True)


def _debug_detail(job: JobEvidence) -> Finding | None:
    ranks = [rank for rank, e in job.ranks.items() if e.env.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL"]
    if not ranks:
        return None
    return load_cause("RW506").finding(
        f"TORCH_DISTRIBUTED_DEBUG=DETAIL is set on {ranks_text(ranks)}", certain=True, why="on torch 2.13 it can crash a healthy gloo job"
    )


def _blind(job: JobEvidence) -> Finding | None:
    lost = [f"node {host} stopped answering" for host in job.lost_hosts]
    spots = list(dict.fromkeys([*lost, *job.blind, *(f"rank {r}: {spot}" for r, e in sorted(job.ranks.items()) for spot in e.blind)]))
    if not spots:
        return None
    more = f" (and {len(spots) - 3} more)" if len(spots) > 3 else ""
    return load_cause("RW505").finding(f"could not see everything: {'; '.join(spots[:3])}{more}", certain=True)
