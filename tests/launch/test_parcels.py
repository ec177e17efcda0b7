"""Evidence and verdicts on their way between nodes: they arrive whole, thinned out where they are too much, and rubbish is dropped."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import replace
from typing import Any

import pytest

from rankwise.evidence.collectives import CollectiveLog, Signature
from rankwise.evidence.records import Call, Frame, HostFacts, Init, JobEvidence, RankEvidence
from rankwise.findings import Finding, Place
from rankwise.launch import parcels
from rankwise.launch.parcels import Verdict, pack_job, pack_verdict, unpack_job, unpack_verdict

# -- without processes --------------------------------------------------------------------------------------------------------


LINE = Frame("train.py", 7, "main")


def a_rank(rank: int, host: str = "node-a", **details: Any) -> RankEvidence:
    log = CollectiveLog()
    log.add(1, Signature("0", "all_reduce", (4,), "float32"), 10, False, (LINE,))
    calls = (Call("all_reduce", 10, 0, (LINE,), sizes=(4,)), Call("barrier", 11, 12, (LINE,)))
    init = Init(rank, 2, "gloo", "env://", "node-a", 29400, None, started_ns=1, ended_ns=2)
    return RankEvidence(rank, 100 + rank, host, inits=(init,), collectives=log, calls=calls, **details)


def a_job(*ranks: RankEvidence, **details: Any) -> JobEvidence:
    facts = {"world_size": len(ranks), "hosts": (HostFacts("node-a"),), "now_ns": int(100e9), **details}
    return JobEvidence(("torchrun",), 1, stall_after_s=10.0, ranks={e.rank: e for e in ranks}, **facts)


def test_evidence_survives_the_journey() -> None:
    job = a_job(a_rank(0), a_rank(1), duplicates=(a_rank(0),), sources={"train.py": "pass"}, blind=("a spot",))

    assert unpack_job(pack_job(job)) == job


def test_evidence_that_is_too_much_is_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_job(a_rank(0), sources={"big.py": os.urandom(30_000).hex()})
    monkeypatch.setattr(parcels, "MAX_VALUE", 8_000)
    packed = pack_job(job)

    assert len(packed) <= 8_000
    assert unpack_job(packed) == replace(job, sources={})


@pytest.mark.parametrize("damage", ["cut", "noise", "list", "wrong", "deep", "bomb", "index"])
def test_what_is_no_evidence_is_dropped(damage: str) -> None:
    whole = pack_job(a_job(a_rank(0)))
    facts = json.loads(zlib.decompress(whole))
    bad_index = {**facts["ranks"][0], "calls": [[99, *facts["ranks"][0]["calls"][0][1:]]]}
    data = {
        "cut": whole[: len(whole) // 2],
        "noise": os.urandom(500),
        "list": zlib.compress(b"[1, 2]"),
        "wrong": zlib.compress(json.dumps({**facts, "ranks": {"0": 1}}).encode()),
        "deep": zlib.compress(b"[" * 200_000),
        "bomb": zlib.compress(b" " * (80 << 20)),
        "index": zlib.compress(json.dumps({**facts, "ranks": [bad_index]}).encode()),
    }[damage]

    assert unpack_job(data) is None
    assert unpack_verdict(data) is None


def test_a_verdict_survives_the_journey() -> None:
    finding = Finding("RW201", "skipped-collective", "error", True, "rank 1 …", (Place(rank=1, host="node-b"),), deadlock=True)
    verdict = Verdict("hung", [finding], a_job(a_rank(0)), 3.5, author=2)

    assert unpack_verdict(pack_verdict(verdict)) == verdict
