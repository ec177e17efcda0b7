"""The cases are well formed, cover every cause, and the judge would notice a wrong verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankwise.causes import all_causes
from tests.gauntlet.arena import Case, Run, all_cases, find_problems

CASES = {case.id: case for case in all_cases()}
NOT_HERE = {
    "RW114": "needs two hosts that cannot reach each other",
    "RW127": "comes of a race between two starts; see tests/diagnose/test_restarts.py",
    "RW318": "needs a terminal; see tests/launch/test_job_output.py",
    "RW413": "the command ends before there is a rank; see tests/diagnose/test_no_ranks.py",
    "RW404": "needs a memory cgroup of its own",
    "RW412": "needs two nodes",
    **dict.fromkeys([f"RW12{i}" for i in range(7)], "told by session(), and tested with it"),
}


def test_there_are_enough_of_each_kind() -> None:
    usual = [case for case in CASES.values() if not case.extra]
    assert sum(not case.is_healthy for case in usual) >= 48
    assert sum(case.is_healthy for case in usual) >= 14
    assert sum(case.launch[0] != "{torchrun}" for case in usual) >= 20
    assert sum(case.launch[0] == "{torchrun}" for case in usual) >= 20


def test_every_cause_of_a_fault_has_a_case() -> None:
    faults = {cause.code for cause in all_causes() if cause.code[:3] in ("RW1", "RW2", "RW3", "RW4")}
    covered = {code for case in CASES.values() for code in case.code}
    assert faults - covered == NOT_HERE.keys()


def test_cases_are_well_formed() -> None:
    known = {cause.code for cause in all_causes()}

    assert [fault for case in CASES.values() for fault in _faults_of(case, known)] == []


def _faults_of(case: Case, known: set[str]) -> list[str]:
    rules = {
        "its id is its folder": case.id == case.folder.name,
        "its symptom is one of the three": case.symptom in ("hang", "crash", "ok"),
        "its codes exist": set(case.code) <= known,
        "it has codes, or is healthy": bool(case.code) != case.is_healthy,
        "nobody is both guilty and innocent": not set(case.culprit_ranks) & set(case.must_not_blame),
        "the line that it asserts is marked": bool(case.marked("fault") or case.marked("now") or not case.line),
        "a healthy one has no fault": not (case.is_healthy and case.marked("fault")),
    }
    return [f"{case.id}: {rule}" for rule, is_kept in rules.items() if not is_kept]


def _run(**changes: Any) -> Run:
    """A right verdict about `stuck_long_sleep`, with some of it changed."""
    case = CASES["stuck_long_sleep"]
    (file, line), *_ = case.marked("fault")
    finding = {
        "code": "RW302",
        "name": "sleeping",
        "severity": "error",
        "summary": "rank 2 sleeps",
        "culprits": [{"rank": 2, "file": f"job/{file}", "line": line}],
        "waiting": [{"rank": 0, "op": "all_reduce"}],
        "why": "",
        "next": [],
    }
    verdict = {"outcome": "stalled", "findings": [finding | changes]}
    return Run(case, Path(), 1, exit_code=None, verdict=verdict, final_verdict=verdict)


def test_a_right_verdict_has_no_problem() -> None:
    assert find_problems(_run()) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"code": "RW301"}, "code RW301"),
        ({"culprits": []}, "culprits []"),
        ({"culprits": [{"rank": 2}, {"rank": 0}]}, "blames innocent [0]"),
        ({"culprits": [{"rank": 2, "file": "train.py", "line": 1}]}, "line "),
        ({"name": "busy", "summary": "rank 2 does something"}, "says none of ['sleep']"),
    ],
)
def test_a_wrong_verdict_is_noticed(changes: dict[str, Any], problem: str) -> None:
    assert any(text.startswith(problem) for text in find_problems(_run(**changes)))


def test_an_alarm_on_a_healthy_job_is_noticed() -> None:
    verdict = {"findings": [{"code": "RW302", "severity": "error", "summary": "rank 0 sleeps"}]}
    run = Run(CASES["ok_join_uneven"], Path(), 1, exit_code=0, verdict=verdict)
    assert find_problems(run) == ["alarm on a healthy job: RW302 rank 0 sleeps"]


def test_what_is_left_running_is_noticed() -> None:
    run = Run(CASES["ok_join_uneven"], Path(), 1, exit_code=0, verdict={"findings": []}, left=["python train.py"])
    assert find_problems(run) == ["left running: python train.py"]
