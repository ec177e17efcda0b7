"""A restart that fails by itself: the rendezvous store still holds the addresses of the ranks that died."""

from __future__ import annotations

import re

from rankwise.causes import load_cause
from rankwise.diagnose.rank_state import RankState, place_at, wait_of
from rankwise.diagnose.wording import verb
from rankwise.evidence.frames import user_frame, user_frames
from rankwise.evidence.records import JobEvidence, RankEvidence
from rankwise.findings import Finding, ranks_text

_REFUSED = re.compile(r"connection refused", re.IGNORECASE)
_LONG_S = 5.0  # ranks on healthy networks connect in much less


def find_stale_store(job: JobEvidence) -> Finding | None:
    """Ranks that use addresses of the start before: certain where a port refused gloo after a restart, suspected where gloo still tries."""
    restarted = {rank: e.inits[-1] for rank, e in sorted(job.ranks.items()) if e.inits and e.restarts > 0 and _shares_the_store(e)}
    refused = [rank for rank, init in restarted.items() if _REFUSED.search(init.error)]
    waited_s = {rank: (job.now_ns - init.started_ns) / 1e9 for rank, init in restarted.items() if not init.ended_ns}
    trying = [rank for rank, seconds in waited_s.items() if job.ranks[rank].alive and seconds > _LONG_S]
    if not refused and (not trying or any(init.ended_ns and not init.error for init in restarted.values())):
        return None
    ranks = refused or trying
    number = max(job.ranks[rank].restarts for rank in ranks)
    told = verb(ranks, "was refused", "were refused") if refused else f"{ranks_text(ranks)} cannot connect"
    finding = load_cause("RW127").finding(
        f"{told} after restart {number}: the rendezvous store still holds the addresses of the ranks that ended",
        certain=bool(refused),
        culprits=tuple(place_at(job.ranks[rank], user_frame(restarted[rank].stack)) for rank in refused),
        waiting=tuple(wait_of(RankState(rank, "init", "init_process_group", stack=user_frames(restarted[rank].stack))) for rank in trying),
        why="torchrun's store outlives a restart, and gloo leaves its ranks' addresses there under the same keys in every start",
    )
    return finding if refused else finding.with_severity("warning")


def _shares_the_store(evidence: RankEvidence) -> bool:
    init = evidence.inits[-1]
    uses_gloo = "gloo" in init.backend.lower() or "gloo" in init.error.lower()
    return uses_gloo and evidence.env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
