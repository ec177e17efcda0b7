"""Evidence of a small job, made by hand."""

from __future__ import annotations

from typing import Any

from rankwise.evidence.collective_log import CollectiveLog, Signature
from rankwise.evidence.records import Call, Frame, HostFacts, Init, JobEvidence, RankEvidence

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
