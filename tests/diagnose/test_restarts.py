"""Ranks that cannot connect after a restart, and those that cannot for another reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwise.diagnose.restarts import find_stale_store
from rankwise.evidence.records import RankEvidence
from tests.diagnose.jobs import NOW_NS, SECOND, ended, in_init, job

REFUSED = (
    "RuntimeError: Gloo connectFullMesh failed with [/gloo/transport/tcp/pair.cc:152] timed out connecting: "
    "SO_ERROR: Connection refused, remote=[127.0.0.1]:14757$1"
)
SHARED = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "1"}


def restarted(number: int, error: str = "", *, restarts: int = 1, env: dict[str, str] = SHARED, backend: str = "gloo") -> RankEvidence:
    """A rank of the second start, in init_process_group or failed there."""
    evidence = replace(in_init(number, world_size=2), restarts=restarts, env=env)
    init = replace(evidence.inits[-1], backend=backend, error=error, ended_ns=NOW_NS - SECOND if error else 0)
    evidence = replace(evidence, inits=(init,))
    return ended(evidence, "exception") if error else evidence


def test_refused_after_a_restart() -> None:
    finding = find_stale_store(job(restarted(0, REFUSED), restarted(1, REFUSED)))

    assert finding is not None
    assert (finding.code, finding.certain, finding.severity) == ("RW127", True, "error")
    assert [place.rank for place in finding.culprits] == [0, 1]
    assert finding.culprits[0].line == 3
    assert "ranks 0, 1 were refused after restart 1" in finding.summary
    assert any("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in step for step in finding.next)


def test_one_refused_while_the_other_still_tries() -> None:
    finding = find_stale_store(job(restarted(0, REFUSED), restarted(1)))

    assert finding is not None
    assert [place.rank for place in finding.culprits] == [0]
    assert [(wait.rank, wait.op) for wait in finding.waiting] == [(1, "init_process_group")]


def test_both_still_try() -> None:
    finding = find_stale_store(job(restarted(0), restarted(1)))

    assert finding is not None
    assert (finding.certain, finding.severity, finding.culprits) == (False, "warning", ())


@pytest.mark.parametrize(
    "evidence",
    [
        restarted(0, REFUSED, restarts=0),
        restarted(0, REFUSED, env={"TORCHELASTIC_USE_AGENT_STORE": "False"}),
        restarted(0, REFUSED, env={}),
        restarted(0, REFUSED.replace("Gloo", "NCCL").replace("gloo", "nccl"), backend="nccl"),
        restarted(0, "RuntimeError: Gloo connectFullMesh failed with Connection reset by peer"),
    ],
    ids=["first start", "a store of its own", "not torchrun", "nccl", "another error"],
)
def test_other_reasons(evidence: RankEvidence) -> None:
    assert find_stale_store(job(evidence)) is None


def test_a_restart_that_has_just_begun() -> None:
    early = restarted(0)
    evidence = replace(early, inits=(replace(early.inits[-1], started_ns=NOW_NS - 2 * SECOND),))

    assert find_stale_store(job(evidence)) is None
