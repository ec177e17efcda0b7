"""Evidence and verdicts on their way between nodes: they arrive whole, thinned out where they are too much, and rubbish is dropped."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import replace

import pytest

from rankwise.findings import Finding, Place
from rankwise.launch import node_messages
from rankwise.launch.node_messages import Verdict, pack_job, pack_verdict, unpack_job, unpack_verdict
from tests.launch.evidence import a_job, a_rank


def test_evidence_survives_the_journey() -> None:
    job = a_job(a_rank(0), a_rank(1), duplicates=(a_rank(0),), sources={"train.py": "pass"}, blind=("a spot",))

    assert unpack_job(pack_job(job)) == job


def test_evidence_that_is_too_much_is_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_job(a_rank(0), sources={"big.py": os.urandom(30_000).hex()})
    monkeypatch.setattr(node_messages, "MAX_VALUE", 8_000)
    packed = pack_job(job)

    assert len(packed) <= 8_000
    assert unpack_job(packed) == replace(job, sources={})


@pytest.mark.parametrize("damage", ["cut", "noise", "list", "wrong", "deep", "bomb", "index"])
def test_what_is_no_evidence_is_dropped(damage: str) -> None:
    whole = pack_job(a_job(a_rank(0)))
    facts = json.loads(zlib.decompress(whole))
    bad_index = {**facts["ranks"][0], "calls": [{**facts["ranks"][0]["calls"][0], "at": 99}]}
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
