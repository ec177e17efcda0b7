"""Nodes that stopped answering: every rank there is gone, and none could say why."""

from __future__ import annotations

from rankwise.causes import load_cause
from rankwise.diagnose.rank_state import RankStates, wait_of
from rankwise.diagnose.waiting import members_of
from rankwise.evidence.records import JobEvidence
from rankwise.findings import Finding, Place, ranks_text

_PROVEN_SILENT_S = 20.0  # silence that proves a node lost without other signs: a machine that froze for so long is no better
_STUCK_S = 5.0


def with_lost_nodes(found: list[Finding], job: JobEvidence, states: RankStates) -> list[Finding]:
    """A node that is gone comes first, unless something else is proven to be the cause."""
    lost = find_lost_nodes(job, states)
    if lost is None:
        return found
    gone = {place.rank for place in lost.culprits}
    others = [finding for finding in found if not finding.culprits or {place.rank for place in finding.culprits} - gone]
    if others and others[0].certain and others[0].severity == "error":
        return [others[0], lost, *others[1:]]
    return [lost, *(finding for finding in others if finding.severity == "info")]


def find_lost_nodes(job: JobEvidence, states: RankStates) -> Finding | None:
    """Nodes whose watcher stopped answering, and with it every rank there. Proven when the ranks that are left cannot go on."""
    if not job.lost_hosts or job.exit_code == 0:
        return None
    gone = {r: e for r, e in job.ranks.items() if e.host in job.lost_hosts and e.ended is not None and e.ended.kind == "vanished"}
    living = [states[rank] for rank, evidence in job.ranks.items() if evidence.alive]
    silent_s = (job.now_ns - max((e.ended.time_ns for e in gone.values() if e.ended), default=job.now_ns)) / 1e9
    is_stuck = bool(living) and all(s.kind in ("waiting", "init") and job.now_ns - s.since_ns > _STUCK_S * 1e9 for s in living)
    if job.exit_code is None and not is_stuck:  # the others go on so far, and RW505 says that this node is out of sight
        return None
    is_felt = any(s.is_echo for s in states.values())
    is_proven = is_stuck and (is_felt or silent_s >= _PROVEN_SILENT_S)
    nodes = ", ".join(job.lost_hosts)
    there = sorted(gone) or [rank for rank in members_of(job, "0") if rank not in job.ranks]
    who = f"{'nodes' if len(job.lost_hosts) > 1 else 'node'} {nodes}" + (f" ({ranks_text(there)})" if there else "")
    has = "are gone: their watchers" if len(job.lost_hosts) > 1 else "is gone: its watcher"
    return load_cause("RW412").finding(
        f"{who} {has} stopped answering" + (f" {silent_s:.0f} s ago" if silent_s >= 1 else ""),
        certain=job.exit_code is not None or is_proven,
        culprits=tuple(Place(rank=r, host=e.host, pid=e.pid) for r, e in sorted(gone.items()))
        or tuple(Place(host=host) for host in job.lost_hosts),
        waiting=tuple(wait_of(s) for rank, s in sorted(states.items()) if rank not in gone and s.kind in ("waiting", "init")),
        why="the machine, its network or everything rankwise ran there went away at once; no rank there could say why",
        deadlock=is_proven,
    )
