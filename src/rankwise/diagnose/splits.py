"""all_to_all: what one rank sends to another must be what that rank expects from it."""

from __future__ import annotations

from dataclasses import dataclass

from rankwise.causes import load_cause
from rankwise.diagnose.rank_state import RankStates, place_at, wait_of
from rankwise.diagnose.waiting import members_of
from rankwise.diagnose.wording import at, group_text
from rankwise.evidence.flight import log_from_calls
from rankwise.evidence.frames import user_frame
from rankwise.evidence.records import Call, JobEvidence, RankEvidence
from rankwise.findings import Finding, ranks_text

_INSTEAD = (
    "exchange the counts first (an all_to_all_single of the split sizes), and use those counts, unchanged, on both sides",
    "where a rank drops or pads rows, do it before the counts are exchanged",
)
_COMPARE = ("compare how the two ranks get these split sizes: one of them is wrong", *_INSTEAD)


@dataclass(frozen=True)
class _Round:
    """One all_to_all of one group: the calls of its ranks, and the pairs whose numbers differ (sender, receiver, sent, expected)."""

    group: str
    seq: int
    calls: dict[int, Call]
    pairs: tuple[tuple[int, int, int, int], ...]


def find_split_disagreement(job: JobEvidence, states: RankStates) -> Finding | None:
    """The first all_to_all in which a rank sends another number of elements than its peer expects."""
    bad = _bad_rounds(job)
    if not bad:
        return None
    found = bad[0]
    ranks, proof = _culprits({pair[:2] for one in bad for pair in one.pairs})
    sender, receiver, sent, expected = found.pairs[0]
    named = ranks or sorted({rank for pair in found.pairs for rank in pair[:2]})
    op = next(iter(found.calls.values())).op
    if sender == receiver:
        mismatch = f"rank {sender} sends {sent} numbers to itself and expects {expected}"
    else:
        mismatch = f"rank {sender} sends {sent} numbers to rank {receiver}, which expects {expected}"
    lines = {rank: user_frame(call.stack) for rank, call in found.calls.items()}
    shown = "; ".join(
        f"rank {rank}: sends {list(call.sent)}, expects {list(call.expected)}{at(lines[rank])}" for rank, call in found.calls.items()
    )
    is_stuck = any(states[rank].kind == "waiting" and states[rank].group == found.group for rank in found.calls if rank in states)
    return load_cause("RW204").finding(
        f"{op}{group_text(found.group)}: {mismatch}",
        certain=bool(ranks),
        culprits=tuple(place_at(job.ranks[rank], lines.get(rank)) for rank in named),
        waiting=tuple(wait_of(states[rank]) for rank in found.calls if rank not in named and states[rank].kind == "waiting"),
        why=f"in all_to_all, what a rank sends to another must be what that one expects from it. {shown}. {proof}",
        deadlock=is_stuck,
        instead=_INSTEAD if ranks else _COMPARE,
    )


def _bad_rounds(job: JobEvidence) -> list[_Round]:
    """The rounds in which sizes do not fit, in order of time: gloo goes on where a rank is sent less than it expects, so there may be several."""
    has_log = all(len(evidence.collectives) and not evidence.collectives.is_partial for evidence in job.ranks.values())
    if not has_log and any(evidence.num_forgotten for evidence in job.ranks.values()):
        return []  # our own numbers begin at the oldest call that is still known, which differs between ranks
    rounds: dict[tuple[str, int], dict[int, Call]] = {}
    for rank, evidence in job.ranks.items():
        for group, seq, call in _numbered(evidence, has_log):
            rounds.setdefault((group, seq), {})[rank] = call
    bad = [found for (group, seq), calls in rounds.items() if (found := _checked(job, group, seq, calls)).pairs]
    return sorted(bad, key=lambda found: min(call.started_ns for call in found.calls.values()))


def _numbered(evidence: RankEvidence, has_log: bool) -> list[tuple[str, int, Call]]:
    """This rank's all_to_all calls with their group and number: torch's numbers, or ours where a crash left none of torch's."""
    noted = [call for call in evidence.calls if call.sent]
    if not noted:
        return []
    log = evidence.collectives if has_log else log_from_calls(evidence.calls)
    entries = [entry for entry in log if entry.what.op.startswith("all_to_all")]
    found = []
    for call in noted:
        end = call.ended_ns or 1 << 63
        inside = [entry for entry in entries if call.started_ns <= entry.created_ns <= end]
        if inside:
            found.append((inside[0].what.group, inside[0].seq, call))
    return found


def _checked(job: JobEvidence, group: str, seq: int, calls: dict[int, Call]) -> _Round:
    members = members_of(job, group)
    pairs = []
    for i, sender in enumerate(members):
        for j, receiver in enumerate(members):
            mine, theirs = calls.get(sender), calls.get(receiver)
            if mine is None or theirs is None or not len(mine.sent) == len(theirs.sent) == len(members):
                continue
            if mine.sent[j] != theirs.expected[i]:
                pairs.append((sender, receiver, mine.sent[j], theirs.expected[i]))
    return _Round(group, seq, dict(sorted(calls.items())), tuple(pairs))


def _culprits(pairs: set[tuple[int, int]]) -> tuple[list[int], str]:
    """The ranks with wrong split sizes, and what proves it; none without proof, because a rank that changed its sizes may be right."""
    alone = sorted({sender for sender, receiver in pairs if sender == receiver})
    if alone and all({*pair} & {*alone} for pair in pairs):
        return alone, f"{ranks_text(alone)} does not even agree with itself"
    common = set.intersection(*({*pair} for pair in pairs))
    if len(common) == 1:
        (rank,) = common
        return [rank], f"rank {rank} is in every pair that does not fit, its peers fit each other"
    return [], "Which of them has the wrong split sizes is not proven"
