"""Findings that stop a start or a training: the stage they are of, and whom they blame."""

from __future__ import annotations

from rankwise.causes import load_cause
from rankwise.findings import Place
from rankwise.stages import BACKEND
from rankwise.train.errors import start_finding, train_error


def test_a_finding_is_of_the_stage_its_cause_knows_or_of_the_one_that_was_not_passed() -> None:
    assert start_finding("RW121", "two on one GPU").stage == load_cause("RW121").stage == "devices"
    assert start_finding("RW110", "rank 1 left", stage=BACKEND).stage == "backend"


def test_of_thousands_to_blame_some_are_named() -> None:
    finding = start_finding("RW101", "all are missing", (Place(rank=rank) for rank in range(5000)))

    assert finding.certain and [place.rank for place in finding.culprits] == list(range(64))


def test_an_error_of_the_training_blames_one_rank_or_none() -> None:
    assert [place.rank for place in train_error("RW711", "rank 0 failed", 0, why="no such file").finding.culprits] == [0]
    assert train_error("RW705", "inside a window").finding.culprits == ()
