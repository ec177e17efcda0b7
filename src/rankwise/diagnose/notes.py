"""Notes on jobs that are not broken: slow starts, stragglers, restarts, and what could not be seen."""

from __future__ import annotations

from rankwise.causes import load_cause
from rankwise.diagnose.rank_state import RankStates
from rankwise.diagnose.straggler import find_straggler
from rankwise.diagnose.wording import seconds_text
from rankwise.evidence.records import JobEvidence
from rankwise.findings import Finding, ranks_text

_SLOW_START_S = 10.0


def find_notes(job: JobEvidence, states: RankStates, *, is_well: bool) -> list[Finding]:
    """Notes are never about faults; notes about pace are left out where there is a fault."""
    about_pace = [_slow_start(job, states), find_straggler(job)] if is_well else []
    notes = [*about_pace, _restarted(job), _debug_detail(job), _blind(job)]
    return [note for note in notes if note is not None]


def _slow_start(job: JobEvidence, states: RankStates) -> Finding | None:
    """All ranks have joined, none has come past its first step, and they are at work."""
    joined = [e.inits[-1].ended_ns for e in job.ranks.values() if e.alive and e.inits and e.inits[-1].ended_ns]
    if job.exit_code is not None or not joined or len(joined) < len(job.ranks):
        return None
    since = (job.now_ns - max(joined)) / 1e9
    begun = any(count > 2 for e in job.ranks.values() for op, count in e.counts.items() if op not in ("new_group", "ddp"))
    at_work = all(state.kind == "busy" for state in states.values())
    if begun or not at_work or since < _SLOW_START_S:
        return None
    return load_cause("RW501").finding(f"the first step takes long: {seconds_text(since)} so far, on all ranks", certain=False)


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
