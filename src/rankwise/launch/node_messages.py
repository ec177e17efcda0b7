"""Packs evidence and verdicts into messages that fit the rendezvous store; unpacking checks them, because other nodes are not trusted."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rankwise.evidence.records import JobEvidence, RankEvidence
from rankwise.evidence.run_folder import pack_log, rank_as_dict, rank_from_dict, without
from rankwise.findings import Finding
from rankwise.launch.store_relay import MAX_VALUE
from rankwise.thaw import thaw

# what unpacking a damaged message may raise
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError, zlib.error)
_MAX_PLAIN = 64 << 20


@dataclass(frozen=True)
class Verdict:
    """What one watcher found out about the whole job; the others adopt it."""

    outcome: str
    findings: list[Finding]
    job: JobEvidence
    stuck_s: float | None = None
    author: int = 0


def pack_job(job: JobEvidence) -> bytes:
    """Evidence as one compressed value, small enough for the store: the least needed is left out first."""
    return _fitting(lambda slim: _freeze_job(job, slim))


def unpack_job(data: bytes) -> JobEvidence | None:
    """The evidence; None for a message that holds none."""
    try:
        return _thaw_job(_unpack(data))
    except UNREADABLE:
        return None


def pack_verdict(verdict: Verdict) -> bytes:
    """The verdict with the evidence it was derived from, or without where that would be too much."""
    facts = {
        "outcome": verdict.outcome,
        "author": verdict.author,
        "stuck_s": verdict.stuck_s,
        "findings": [finding.to_dict() for finding in verdict.findings],
    }
    whole = _fitting(lambda slim: {**facts, "job": _freeze_job(verdict.job, slim)})
    return whole or zlib.compress(json.dumps(facts, default=str).encode())


def unpack_verdict(data: bytes) -> Verdict | None:
    """The verdict; None for a message that holds none."""
    try:
        facts = _unpack(data)
        stuck_s = facts.get("stuck_s")
        return Verdict(
            outcome=str(facts["outcome"]),
            findings=[thaw(Finding, finding) for finding in facts["findings"][:100]],
            job=_thaw_job(facts["job"]),
            stuck_s=float(stuck_s) if stuck_s is not None else None,
            author=int(facts["author"]),
        )
    except UNREADABLE:
        return None


def _unpack(data: bytes) -> dict[str, Any]:
    stream = zlib.decompressobj()
    plain = stream.decompress(data, _MAX_PLAIN)
    if stream.unconsumed_tail:
        raise ValueError("too large to be evidence")
    facts = json.loads(plain)
    if not isinstance(facts, dict):
        raise ValueError("not an object")
    return facts


def _fitting(facts_of: Callable[[int], dict[str, Any]]) -> bytes:
    """The first of three forms, each smaller than the one before, that fits the store; empty where none does."""
    packed = (zlib.compress(json.dumps(facts_of(slim), default=str).encode(), 3) for slim in (0, 1, 2))
    return next((data for data in packed if len(data) <= MAX_VALUE), b"")


def _freeze_job(job: JobEvidence, slim: int) -> dict[str, Any]:
    plain = without(job, "ranks", "duplicates", "sources")
    plain["ranks"] = [_freeze_rank(evidence, slim) for evidence in job.ranks.values()]
    plain["duplicates"] = [_freeze_rank(evidence, slim) for evidence in job.duplicates]
    plain["sources"] = job.sources if slim == 0 else {}
    return plain


def _thaw_job(data: dict[str, Any]) -> JobEvidence:
    job: JobEvidence = thaw(JobEvidence, {**data, "ranks": {}, "duplicates": []})
    ranks = [_thaw_rank(rank) for rank in data["ranks"]]
    return replace(job, ranks={e.rank: e for e in ranks}, duplicates=tuple(_thaw_rank(rank) for rank in data["duplicates"]))


def _freeze_rank(evidence: RankEvidence, slim: int) -> dict[str, Any]:
    kept = evidence if slim < 2 else replace(evidence, calls=evidence.calls[-256:], samples=evidence.samples[-8:], helpers=())
    return {**rank_as_dict(kept), "log": base64.b64encode(pack_log(kept.collectives)).decode()}


def _thaw_rank(data: dict[str, Any]) -> RankEvidence:
    return rank_from_dict(data, base64.b64decode(data.pop("log")))
