"""inf and nan: on which rank first, in the loss or in the backward, and whether the weights were spoiled."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise.diagnose.silent.not_finite import find
from rankwise.evidence.audit import Audit, BadLoss, BatchSeen, Window
from tests.diagnose.silent.audits import audited, lines, row, step

SPOILED = ("weight", True, 5, None, 7, None)


def bad(n: int, **facts: Any) -> Audit:
    return Audit(bad_losses=(BadLoss(n, 14, "nan"),), **facts)


def test_finite_losses_are_no_finding() -> None:
    assert find(audited(Audit(), Audit())) is None


def test_one_ranks_loss_that_spoils_the_weights_is_a_warning() -> None:
    found = find(audited(bad(8), bad(7, steps=(step(8, SPOILED),))))

    assert (found.code, found.severity, found.certain) == ("RW766", "warning", True)
    assert "the loss became nan on rank 1 alone at step 7; from step 8 on parameter weight is not finite on rank 1" in found.summary
    assert "carries the gradients" in found.why and lines(found) == {1: 14}


@pytest.mark.parametrize(
    "ranks",
    [
        (bad(7, steps=(step(8, SPOILED),)), bad(7)),  # on all ranks: the run itself diverges
        (bad(7, steps=(step(8, row()),)), Audit()),  # the weights stayed finite: a GradScaler skips such steps
        (bad(7, steps=(step(8, ("weight", True, 5, None, None, None)),)), Audit()),  # weights that were not looked at
    ],
)
def test_it_is_a_note_where_all_ranks_have_it_or_the_weights_are_well(ranks: tuple[Audit, ...]) -> None:
    assert find(audited(*ranks)).severity == "info"


def test_a_batch_that_already_holds_nan_is_named() -> None:
    batches = (BatchSeen(1, 0, 2, (1,), (), 8, 4, 1), BatchSeen(1, 0, 3, (1,), (0,), 8, 4, 1))

    assert "batch 3 of rank 0's epoch 0 already holds inf or nan" in find(audited(bad(7, batches=batches), Audit())).why
    assert "the batch itself is finite" in find(audited(bad(7), Audit(batches=batches))).why


def with_local(n: int, norm: float | None, **facts: Any) -> Audit:
    return Audit(steps=(step(n, row(), local=(("weight", norm),)),), windows=(Window(0, "zns", 0, 5, 20, 1, {"n": 11, "s": 10}),), **facts)


def test_gradients_that_were_not_finite_before_the_first_bad_loss_name_their_rank() -> None:
    found = find(audited(with_local(5, 1.0, bad_losses=(BadLoss(6, 14, "nan"),)), with_local(5, None)))

    assert (found.code, found.severity, found.certain) == ("RW766", "warning", True)
    assert "on rank 1 alone at step 5, first seen in weight" in found.summary and "finite on rank 0" in found.why
    assert lines(found) == {1: 10}


@pytest.mark.parametrize(("step_of_gradient", "other"), [(6, 1.0), (5, None)], ids=["not before the loss", "on all ranks"])
def test_otherwise_the_loss_is_told(step_of_gradient: int, other: float | None) -> None:
    found = find(audited(with_local(step_of_gradient, other, bad_losses=(BadLoss(6, 14, "nan"),)), with_local(step_of_gradient, None)))

    assert "the loss became nan on rank 0 alone at step 6" in found.summary
