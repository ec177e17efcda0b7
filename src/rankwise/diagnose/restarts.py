"""A restart that fails by itself: the rendezvous store still holds the addresses of the ranks that died."""

from __future__ import annotations

import re

from rankwise.causes import load_cause
from rankwise.diagnose.rank_state import place_at
from rankwise.diagnose.wording import verb
from rankwise.evidence.frames import user_frame
from rankwise.evidence.records import Init, JobEvidence, RankEvidence
from rankwise.findings import Finding, Wait

_REFUSED = re.compile(r"connection refused", re.IGNORECASE)
_LONG_S = 5.0  # ranks on healthy networks connect in much less


def find_stale_store(job: JobEvidence) -> Finding | None:
    """Certain where a port refused gloo after a restart, for it can only be one of the start before; suspected where gloo still tries."""
    restarted = {rank: e for rank, e in sorted(job.ranks.items()) if e.inits and _shares_the_store(e) and _uses_gloo(e.inits[-1])}
    refused = [rank for rank, e in restarted.items() if _REFUSED.search(_error_of(e))]
    trying = [rank for rank, e in restarted.items() if e.alive and not e.inits[-1].ended_ns and _waited_s(job, e) > _LONG_S]
    if not refused and (not trying or any(e.inits[-1].ended_ns and not _error_of(e) for e in restarted.values())):
        return None
    ranks = refused or trying
    number = max(restarted[rank].restarts for rank in ranks)
    told = verb(ranks, "was refused", "were refused") if refused else verb(ranks, "cannot connect", "cannot connect")
    finding = load_cause("RW127").finding(
        f"{told} after restart {number}: the rendezvous store still holds the addresses of the ranks that ended",
        certain=bool(refused),
        culprits=tuple(place_at(restarted[rank], user_frame(restarted[rank].inits[-1].stack)) for rank in refused),
        waiting=tuple(_wait_of(restarted[rank]) for rank in trying),
        why="torchrun's store outlives a restart, and gloo leaves its ranks' addresses there under the same keys in every start",
    )
    return finding if refused else finding.with_severity("warning")


def _shares_the_store(evidence: RankEvidence) -> bool:
    return evidence.restarts > 0 and evidence.env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _uses_gloo(init: Init) -> bool:
    return "gloo" in init.backend.lower() or "gloo" in init.error.lower()


def _error_of(evidence: RankEvidence) -> str:
    return evidence.inits[-1].error


def _waited_s(job: JobEvidence, evidence: RankEvidence) -> float:
    return (job.now_ns - evidence.inits[-1].started_ns) / 1e9


def _wait_of(evidence: RankEvidence) -> Wait:
    frame = user_frame(evidence.inits[-1].stack)
    place = (frame.file, frame.line, frame.function) if frame else (None, None, None)
    return Wait(evidence.rank, "init_process_group", "default", None, *place)
