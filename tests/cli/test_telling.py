"""The terminal says what verdict.json says, when it says it, and takes back what is no longer true."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankwise.cli.telling import Telling
from rankwise.evidence.records import JobEvidence
from rankwise.findings import Finding, Place
from rankwise.launch.faults import Faults
from rankwise.launch.watch import Report

BUSY = Finding("RW502", "waiting-for-busy-rank", "info", False, "rank 1 is busy", culprits=(Place(1, file="a.py", line=3),))
LOCK = Finding("RW309", "lock-copied-by-fork", "info", False, "rank 1 waits for a lock", culprits=(Place(1, file="a.py", line=3),))
SKIPPED = Finding("RW201", "skipped-collective", "error", True, "rank 1 never called all_reduce #13")
BLIND = Finding("RW505", "partly-blind", "info", True, "could not see everything: ptrace is refused")


class Terminal:
    """In place of the output pump."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


class Story:
    """Tells one report after another."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.faults, self.terminal = folder, Faults(), Terminal()
        self._telling = Telling(folder, self.faults)

    def tell(self, *findings: Finding, outcome: str = "stalled", is_final: bool = False) -> str:
        """What the terminal gets for this report."""
        job = JobEvidence(("train",), 0, 0, 2, 10.0, {})
        before = len(self.terminal.said)
        self._telling.tell(Report(outcome, 0 if is_final else None, list(findings), job, 5.0, 1.0, is_final), self.terminal)  # type: ignore[arg-type]
        return "\n".join(self.terminal.said[before:])

    def in_file(self) -> list[str]:
        return [finding["code"] for finding in json.loads((self.folder / "verdict.json").read_text())["findings"]]


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


@pytest.mark.parametrize("finding", [BUSY, LOCK, SKIPPED, BLIND], ids=lambda finding: finding.code)
def test_every_finding_in_the_file_is_on_the_terminal(story: Story, finding: Finding) -> None:
    """Also what is only a note or a suspicion."""
    said = story.tell(finding)

    assert story.in_file() == [finding.code]
    assert finding.code in said
    assert finding.summary in said


def test_a_suspicion_that_is_over_is_taken_back(story: Story) -> None:
    story.tell(BUSY)
    said = story.tell(outcome="running")

    assert story.in_file() == []
    assert said == "RW502  taken back: rank 1 is busy · the job moves again"
    assert story.tell(outcome="completed", is_final=True) == ""


def test_a_suspicion_that_the_end_does_not_bear_out_is_taken_back(story: Story) -> None:
    story.tell(BUSY)

    assert story.tell(outcome="completed", is_final=True) == "RW502  taken back: rank 1 is busy · the job ended well"


def test_a_suspicion_that_gives_way_to_another(story: Story) -> None:
    story.tell(LOCK)
    first, *rest = story.tell(BUSY).splitlines()

    assert first == "RW309  taken back: rank 1 waits for a lock"
    assert "RW502" in "\n".join(rest)


def test_what_was_certain_is_over_and_not_taken_back(story: Story) -> None:
    story.tell(SKIPPED)

    assert "RW201  over: " in story.tell(outcome="running")


def test_what_could_not_be_seen_needs_no_taking_back(story: Story) -> None:
    story.tell(BUSY, BLIND)

    assert "RW505" not in story.tell(outcome="running")


def test_nothing_is_told_in_full_twice(story: Story) -> None:
    story.tell(BUSY)
    moved = Finding("RW502", "waiting-for-busy-rank", "info", False, "rank 1 is busy", culprits=(Place(1, file="a.py", line=4),))
    assert story.tell(moved) == ""  # the same rank at another line
    story.tell(outcome="running")

    again = story.tell(BUSY)
    assert "RW502" in again
    assert "run folder" not in again


def test_another_culprit_is_news(story: Story) -> None:
    story.tell(BUSY)
    other = Finding("RW502", "waiting-for-busy-rank", "info", False, "rank 2 is busy", culprits=(Place(2, file="a.py", line=3),))

    assert "rank 2 is busy" in story.tell(other)


def test_how_it_ended_is_said_where_that_is_new(story: Story) -> None:
    story.tell(SKIPPED, outcome="hung")
    assert story.tell(SKIPPED, outcome="hung", is_final=True) == ""
    said = story.tell(SKIPPED, outcome="crashed", is_final=True)
    assert "crashed" in said
    assert "run folder" not in said


def test_where_the_folder_cannot_be_written_the_terminal_tells(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    story = Story(tmp_path / "file")
    said = story.tell(SKIPPED)

    assert "RW201" in said
    assert "RW505" in said
    assert "could not write verdict.json" in " ".join(said.split())
