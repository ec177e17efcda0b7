"""The exception tree: every error holds one finding of the catalogue and says all of it."""

from __future__ import annotations

import pickle
import traceback

import pytest

from rankwise.causes import load_cause
from rankwise.errors import RankwiseError, StartError, UnreadableInput, UsageError, WorkerError, headline
from rankwise.findings import Finding, Place
from rankwise.stages import STAGES


@pytest.mark.parametrize(("kind", "code"), [(UsageError, "RW001"), (UnreadableInput, "RW002")])
def test_each_error_holds_a_finding_of_its_own_cause(kind: type[RankwiseError], code: str) -> None:
    error = kind("no such folder: runs/a", why="it was moved", next=("look for it",))

    assert isinstance(error, RankwiseError)
    assert (error.finding.code, error.finding.name, error.finding.severity) == (code, load_cause(code).name, load_cause(code).severity)
    assert (error.finding.certain, error.finding.deadlock) == (True, False)
    assert (error.finding.why, error.finding.next) == ("it was moved", ("look for it",))
    assert str(error) == f"{code} no such folder: runs/a\nwhy    it was moved\nnext   look for it"
    assert error.finding.summary == "no such folder: runs/a"


def test_a_traceback_shows_the_rest_of_the_finding_and_the_headline_is_found_above_it() -> None:
    try:
        raise UsageError("no such module", why="there are\nfirst and\nsecond", next=("look there",))
    except UsageError:
        shown = traceback.format_exc()

    assert shown.endswith("why    there are\n       first and\n       second\nnext   look there\n")
    assert headline(shown) == "rankwise.errors.UsageError: RW001 no such module"
    assert shown.count("look there") == shown.count("no such module") == 2  # the line that raises it, and what it says
    assert headline("") == ""


def test_the_headline_of_an_exception_group_is_its_own_line() -> None:
    try:
        raise BaseExceptionGroup("several", [KeyboardInterrupt(), ValueError("one")])
    except BaseExceptionGroup:
        assert headline(traceback.format_exc()) == "BaseExceptionGroup: several (2 sub-exceptions)"


def test_the_base_takes_any_finding() -> None:
    finding = Finding("RW900", "unknown-cause", "warning", False, "no idea")

    assert RankwiseError(finding).finding is finding


@pytest.mark.parametrize(
    "error",
    [
        UsageError("bad option", why="typo", next=("look",)),
        StartError(Finding("RW101", "", "error", True, "no rank 2", culprits=(Place(rank=2),))),
        WorkerError(Finding("RW900", "unknown-cause", "error", True, "it failed"), "Traceback …"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_go_whole_from_process_to_process(error: RankwiseError) -> None:
    error.add_note("seen in a worker")

    arrived = pickle.loads(pickle.dumps(error))

    assert type(arrived) is type(error) and str(arrived) == str(error)
    assert vars(arrived) == vars(error) and arrived.finding == error.finding


def test_one_except_catches_them_all() -> None:
    with pytest.raises(RankwiseError, match="bad option"):
        raise UsageError("bad option")


@pytest.mark.parametrize("stage", [stage.name for stage in STAGES])
def test_a_start_error_says_its_whole_finding(stage: str) -> None:
    places = (Place(rank=2, host="node-b"), Place(rank=3, host="node-c", pid=77), Place())
    finding = load_cause("RW101").finding("rank 2 never registered", certain=True, culprits=places, why="nobody knows", stage=stage)
    text = str(StartError(finding))

    assert "rank 3, host node-c, pid 77" in text and "rankwise explain RW101" in text


def test_a_worker_error_ends_with_the_workers_traceback() -> None:
    finding = Finding("RW401", "exception", "error", True, "rank 1 raised ValueError")

    assert str(WorkerError(finding, "Traceback …\nValueError\n")) == "RW401 rank 1 raised ValueError\n\nTraceback …\nValueError"
