"""Notes on jobs that are not broken: slow starts, long waits that move, restarts, and what could not be seen."""

from __future__ import annotations

from rankwise.causes import load_cause
from rankwise.diagnose.standing import Standing
from rankwise.evidence.records import JobEvidence
from rankwise.findings import Finding, ranks_text


def find_notes(job: JobEvidence, stands: dict[int, Standing]) -> list[Finding]:
    notes = [_restarted(job), _debug_detail(job), _blind(job)]
    return [note for note in notes if note is not None]


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
    spots = list(dict.fromkeys([*job.blind, *(f"rank {r}: {spot}" for r, e in sorted(job.ranks.items()) for spot in e.blind)]))
    if not spots:
        return None
    more = f" (and {len(spots) - 3} more)" if len(spots) > 3 else ""
    return load_cause("RW505").finding(f"could not see everything: {'; '.join(spots[:3])}{more}", certain=True)
