"""Sends without receives, and ranks that wait for each other in a circle."""

from __future__ import annotations

from rankwise.causes import load_cause
from rankwise.diagnose.standing import P2P, Standings, place_of, wait_of
from rankwise.diagnose.transfers import latest_transfer, num_transfers
from rankwise.diagnose.waiting import doomed_ranks, is_transfer, needed_by
from rankwise.diagnose.wording import at, group_text
from rankwise.evidence.flight import GLOO_MARK, base_group
from rankwise.evidence.records import JobEvidence
from rankwise.findings import Finding, ranks_text


def find_unmatched_p2p(job: JobEvidence, stands: Standings) -> Finding | None:
    doomed = doomed_ranks(job, stands)
    for rank, standing in sorted(stands.items()):
        if rank not in doomed or standing.op not in P2P or standing.peer is None:
            continue
        peer = stands.get(standing.peer)
        if peer is None or peer.kind in ("elsewhere", "before_init", "init"):
            continue
        wanted = "recv" if "send" in standing.op else "send"
        if is_transfer(job, stands, rank, standing.peer):
            continue
        tags = _tags(job, stands, rank, standing.peer)
        doing = "has ended" if peer.kind == "ended" else f"is in {peer.says}{at(peer.frame)}"
        sender, receiver = (rank, standing.peer) if wanted == "recv" else (standing.peer, rank)
        return load_cause("RW212").finding(
            f"rank {rank} waits in {standing.op} {'to' if wanted == 'recv' else 'from'} rank {standing.peer}{at(standing.frame)}, "
            f"but rank {standing.peer} {doing} and makes no matching {'recv (receive)' if wanted == 'recv' else 'send'}{tags}",
            certain=True,
            culprits=(place_of(job.ranks[rank], standing.frame), place_of(job.ranks[standing.peer], peer.frame)),
            waiting=tuple(wait_of(stands[r]) for r in sorted(doomed - {rank, standing.peer})),
            why=f"every send needs its recv{_balance(job, sender, receiver)}",
            deadlock=True,
        )
    return None


def _tags(job: JobEvidence, stands: Standings, rank: int, peer: int) -> str:
    """Both sides' tags, where that is what keeps a send and a recv apart."""
    mine, theirs = latest_transfer(job.ranks[rank], stands[rank].op, peer), latest_transfer(job.ranks[peer], stands[peer].op, rank)
    if mine is None or theirs is None or mine.tag == theirs.tag or stands[peer].kind != "waiting":
        return ""
    return f": rank {rank} uses tag {mine.tag or 0}, rank {peer} tag {theirs.tag or 0}"


def _balance(job: JobEvidence, sender: int, receiver: int) -> str:
    sends = num_transfers(job.ranks[sender], "send", receiver)
    receives = num_transfers(job.ranks[receiver], "recv", sender)
    return f": rank {sender} has called send to rank {receiver} {sends} times, rank {receiver} has called recv from it {receives} times"


def find_circle(job: JobEvidence, stands: Standings) -> Finding | None:
    """Ranks that wait for each other in collectives of different groups."""
    waiting = {rank: needed_by(job, stands, rank) for rank in doomed_ranks(job, stands)}
    for rank in sorted(waiting):
        path = [rank]
        while True:
            step = next((r for r in sorted(waiting.get(path[-1], ())) if r in waiting), None)
            if step is None:
                break
            if step in path:
                ring = path[path.index(step) :]
                if len({stands[r].group for r in ring}) > 1:
                    return _circle_finding(job, stands, ring)
                break
            path.append(step)
    return None


def _circle_finding(job: JobEvidence, stands: Standings, ring: list[int]) -> Finding:
    if len({base_group(stands[r].group) for r in ring}) == 1:
        return _different_backends(job, stands, ring)
    told = "; ".join(
        f"rank {r} is in {stands[r].says}{group_text(stands[r].group) or ' of the default group'}{at(stands[r].frame)}" for r in ring
    )
    return load_cause("RW218").finding(
        f"{ranks_text(ring)} wait for each other in collectives of different groups: {told}",
        certain=True,
        culprits=tuple(place_of(job.ranks[r], stands[r].frame) for r in ring),
        why="ranks that share several groups must call the groups' collectives in the same order",
        deadlock=True,
    )


def _different_backends(job: JobEvidence, stands: Standings, ring: list[int]) -> Finding:
    """The same group, but one rank's tensor is on the CPU and another's on the GPU: the calls went to different backends."""
    on_cpu = {r: stands[r].group.endswith(GLOO_MARK) for r in ring}
    told = "; ".join(
        f"rank {r} is in {stands[r].says} of a {'CPU tensor (gloo)' if on_cpu[r] else 'CUDA tensor (nccl)'}{at(stands[r].frame)}"
        for r in ring
    )
    return load_cause("RW202").finding(
        f"{ranks_text(ring)} call {stands[ring[0]].op} on different devices, CPU (gloo) and CUDA (nccl)",
        certain=True,
        culprits=tuple(place_of(job.ranks[r], stands[r].frame) for r in ring),
        why=f"with two backends a collective goes to the one of its tensor's device, and the two never meet: {told}",
        deadlock=True,
        instead=("put the tensor on the same device on every rank",),
    )
