"""The exception tree: every error holds one finding of the catalogue and says its summary."""

from __future__ import annotations

import pytest

from rankwise.causes import load_cause
from rankwise.errors import RankwiseError, UnreadableInput, UsageError
from rankwise.findings import Finding


@pytest.mark.parametrize(("kind", "code"), [(UsageError, "RW001"), (UnreadableInput, "RW002")])
def test_each_error_holds_a_finding_of_its_own_cause(kind: type[RankwiseError], code: str) -> None:
    error = kind("no such folder: runs/a", why="it was moved", next=("look for it",))

    assert isinstance(error, RankwiseError)
    assert (error.finding.code, error.finding.name, error.finding.severity) == (code, load_cause(code).name, load_cause(code).severity)
    assert (error.finding.certain, error.finding.deadlock) == (True, False)
    assert (error.finding.why, error.finding.next) == ("it was moved", ("look for it",))
    assert str(error) == error.finding.summary == "no such folder: runs/a"


def test_the_base_takes_any_finding() -> None:
    finding = Finding("RW900", "unknown-cause", "warning", False, "no idea")

    assert RankwiseError(finding).finding is finding


def test_one_except_catches_them_all() -> None:
    with pytest.raises(RankwiseError, match="bad option"):
        raise UsageError("bad option")
