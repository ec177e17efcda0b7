"""The recorded evidence of gauntlet cases gives the verdicts that were written down; a difference shows what a change has changed."""

from __future__ import annotations

import pytest

from tests.gauntlet.arena import all_cases
from tests.gauntlet.record import VERDICTS, recordings, verdict_of

WRITTEN = {text.splitlines()[0]: text for text in VERDICTS.read_text().strip().split("\n\n")}
RECORDED = {path.name.removesuffix(".tar.xz"): path for path in recordings()}


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_the_verdict_is_the_one_written_down(name: str) -> None:
    assert verdict_of(RECORDED[name]).splitlines() == WRITTEN[name].splitlines(), (
        "if it is better now: python -m tests.gauntlet.record --verdicts"
    )


def test_nothing_is_written_down_that_was_not_recorded() -> None:
    assert set(WRITTEN) == set(RECORDED)


@pytest.mark.parametrize("case", [case for case in all_cases() if case.id in RECORDED], ids=str)
def test_what_is_written_down_is_the_truth_about_the_case(case) -> None:
    """The recording of a wrong verdict would only hold it."""
    first = WRITTEN[case.id].splitlines()[1]

    if case.is_healthy:
        assert " error: " not in WRITTEN[case.id]
    else:
        assert first.split()[0] in case.code
