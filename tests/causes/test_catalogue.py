"""The catalogue: causes are found by listing their folder, and make findings that carry their code."""

from __future__ import annotations

import pytest

from rankwise.causes import load_cause
from rankwise.findings import Place


def test_a_cause_is_loaded_once() -> None:
    assert load_cause("RW201") is load_cause("RW201")


@pytest.mark.parametrize("code", ["RW000", "RW2", "rw201", "", "RW201 ", "../errors"])
def test_a_code_that_is_not_there_is_a_key_error(code: str) -> None:
    with pytest.raises(KeyError):
        load_cause(code)


def test_a_finding_has_its_causes_code_name_and_severity() -> None:
    found = load_cause("RW201").finding("rank 1 skipped it", certain=True, culprits=(Place(1),), why="a continue", deadlock=True)

    assert (found.code, found.name, found.severity) == ("RW201", "skipped-collective", "error")
    assert (found.summary, found.certain, found.deadlock, found.why) == ("rank 1 skipped it", True, True, "a continue")
    assert [place.rank for place in found.culprits] == [1]


def test_steps_for_this_very_case_come_first_and_the_page_last() -> None:
    cause = load_cause("RW107")

    found = cause.finding("port 29500 is taken", certain=True, next=("kill 777",))

    assert found.next == ("kill 777", *cause.next, "rankwise explain RW107")


def test_a_finding_does_not_change_its_cause() -> None:
    before = load_cause("RW502").next

    load_cause("RW502").finding("busy", certain=False, next=("wait",), severity="warning")

    assert (load_cause("RW502").next, load_cause("RW502").severity) == (before, "info")
