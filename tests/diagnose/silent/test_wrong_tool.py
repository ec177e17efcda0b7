"""DataParallel, and DDP around a model that only infers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwise.diagnose.silent.audited_job import AuditedJob
from rankwise.diagnose.silent.wrong_tool import find_data_parallel, find_inference
from rankwise.evidence.audit import Audit, DataParallelBuilt, ForwardSeen, OptimizerSeen, Window
from rankwise.evidence.records import Call
from tests.diagnose.jobs import SECOND, job
from tests.diagnose.silent.audits import DDP, audited, lines


def test_data_parallel_is_noted_where_it_is_built() -> None:
    found = find_data_parallel(audited(Audit(data_parallel=(DataParallelBuilt(7, 4),)), Audit()))

    assert (found.code, found.severity, found.certain) == ("RW785", "info", True)
    assert "over 4 devices" in found.why and lines(found) == {0: 7}
    assert find_data_parallel(audited(Audit())) is None


def inferring(num_forwards: int, **facts: object) -> Audit:
    forwards = tuple(ForwardSeen(n, 6, False, False, ()) for n in range(num_forwards))
    return Audit(**{"wrappers": (DDP,), "forwards": forwards, **facts})


@pytest.mark.parametrize(("num_forwards", "exit_code", "is_found"), [(8, 0, True), (7, 0, False), (200, None, True), (199, None, False)])
def test_inference_through_ddp_is_noted_at_the_end_or_after_many_forwards(num_forwards: int, exit_code: int | None, is_found: bool) -> None:
    found = find_inference(audited(inferring(num_forwards), inferring(num_forwards + 2), exit_code=exit_code))

    assert (found is not None) == is_found
    if found is not None:
        assert (found.code, found.severity, found.certain) == ("RW784", "info", True)
        assert f"{num_forwards} forwards" in found.summary and lines(found) == {0: 6, 1: 6}


@pytest.mark.parametrize(
    "facts",
    [{"optimizers": (OptimizerSeen(0, 20, 8, 1, 1, 1, 1),)}, {"windows": (Window(0, "zs", 0, 1, 20),)}, {"wrappers": ()}],
    ids=["an optimizer", "a step", "no DDP"],
)
def test_a_rank_that_trains_or_has_no_ddp_is_left_alone(facts: dict[str, object]) -> None:
    assert find_inference(audited(inferring(8, **facts), exit_code=0)) is None


def with_calls(*calls: Call, backwards: int = 0) -> AuditedJob:
    [evidence] = audited(inferring(8)).job.ranks.values()
    return AuditedJob(job(replace(evidence, calls=calls, counts={"backward": backwards}), exit_code=0))


def test_a_backward_is_training() -> None:
    assert find_inference(with_calls(backwards=1)) is None


def test_the_time_in_collectives_is_told_without_what_surrounds_them() -> None:
    calls = (Call("all_reduce", 0, 2 * SECOND), Call("forward", 0, 9 * SECOND), Call("broadcast", SECOND, 0))

    assert "2.0 s in collectives" in find_inference(with_calls(*calls)).why
