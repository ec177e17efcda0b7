"""Numbers in the log that are one rank's, or a mean of means: suspected, never proven, and not where the script combines them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rankwise.diagnose.silent.audited_job import AuditedJob
from rankwise.diagnose.silent.reporting import find
from rankwise.evidence.audit import Audit, AuditEnd, BatchSeen, ForwardSeen, PassBegun, PassEnded, Reduced, Wrote
from tests.diagnose.jobs import job, path_of
from tests.diagnose.silent.audits import audited, lines, row, step

PRINTS_LOSS = {"rank-0": "epoch 1 loss: 0.43\n", "rank-1": "starting\n"}


def losing(loss: float, losses: int = 8, **facts: Any) -> Audit:
    return Audit(ends=(AuditEnd(loss, losses),), forwards=(ForwardSeen(0, 6, True, True, ()),), **facts)


# -- rank 0's loss ------------------------------------------------------------------------------------------------------------


def test_a_loss_that_only_rank_0_prints_and_nobody_reduces_is_suspected() -> None:
    source = "\n" * 6 + "total += loss.item()\nprint(epoch, loss)\n"
    found = find(audited(losing(0.4), losing(0.6), log_tails=PRINTS_LOSS, sources={"train.py": source}))

    assert (found.code, found.severity, found.certain) == ("RW780", "info", False)
    assert "that of rank 0 only, its local one: 0.4 on average, over all ranks it is 0.5" in found.summary
    assert [place.line for place in found.culprits] == [7, 8]


@pytest.mark.parametrize(
    ("ranks", "tails"),
    [
        ((losing(1.0), losing(1.19)), PRINTS_LOSS),
        ((losing(0.4), losing(0.6)), {**PRINTS_LOSS, "rank-1": "loss: 0.6"}),
        ((losing(0.4), losing(0.6)), {"rank-0": "accuracy: 0.6"}),
        ((losing(0.4, 7), losing(0.6)), PRINTS_LOSS),
        ((losing(-0.4), losing(0.6)), PRINTS_LOSS),
        ((losing(0.4),), PRINTS_LOSS),
        ((losing(0.4, reduces=(Reduced("all_reduce", "0", 0, "", (), (), 1, 1),)), losing(0.6)), PRINTS_LOSS),
    ],
    ids=["much alike", "both print", "none prints it", "too few losses", "below zero", "one rank", "the script reduces a number"],
)
def test_what_is_no_loss_of_rank_0_alone(ranks: tuple[Audit, ...], tails: dict[str, str]) -> None:
    assert find(audited(*ranks, log_tails=tails)) is None


def test_gradients_reduced_by_hand_combine_no_losses() -> None:
    by_hand = (Reduced("all_reduce", "0", 0, "gradient of weight", (), (), 8, 1),)

    assert find(audited(losing(0.4, reduces=by_hand), losing(0.6, reduces=by_hand), log_tails=PRINTS_LOSS)) is not None


@pytest.mark.parametrize("op", ["all_gather_object", "gather_object", "all_reduce"])
def test_a_collective_that_was_only_counted_may_have_combined_them(op: str) -> None:
    seen = audited(losing(0.4), losing(0.6))
    counted = [replace(e, counts={op: 1}) for e in seen.job.ranks.values()]

    assert find(AuditedJob(job(*counted, log_tails=PRINTS_LOSS))) is None


@pytest.mark.parametrize(
    ("writes_of", "path", "how", "is_found"),
    [
        (0, "out/train_log.txt", "open", True),
        (0, "out/model.bin", "open", False),
        (1, "out/train_log.txt", "open", False),
        (0, "a.csv", "np.save", False),
    ],
)
def test_a_file_for_such_numbers_speaks_as_printing_does(writes_of: int, path: str, how: str, is_found: bool) -> None:
    writes = [(Wrote(path_of(path), how, 30),) if r == writes_of else () for r in range(2)]

    found = find(audited(*[losing(loss, writes=one) for loss, one in zip((0.4, 0.6), writes)]))

    assert (found is not None) == is_found


def test_the_losses_of_sampled_steps_serve_while_the_job_runs() -> None:
    def running(loss: float, num: int) -> Audit:
        return Audit(steps=tuple(step(n, row(), loss=loss) for n in range(num)))

    assert find(audited(running(0.4, 8), running(0.6, 8), log_tails=PRINTS_LOSS)) is not None
    assert find(audited(running(0.4, 7), running(0.6, 7), log_tails=PRINTS_LOSS)) is None


# -- an evaluation's numbers --------------------------------------------------------------------------------------------------

EVALUATION = PassBegun(1, 0, 20, 5, "DistributedSampler", False, None, False, True, 64, False, 0, 0)
PRINTS_ACCURACY = {"rank-0": "accuracy 0.91\n"}


def evaluating(number: int, samples: int = 32, *values: float, label: str = "", **ended: Any) -> Audit:
    """A rank that evaluated samples of its own, and then reduced these values, one a call."""
    return Audit(
        passes=(EVALUATION,),
        batches=(BatchSeen(1, 0, 0, (number,), (), 8, 4, 0),),
        pass_ends=(replace(PassEnded(1, 0, True, 8, samples, 0, 0, 0), **ended),),
        reduces=tuple(Reduced("all_reduce", "0", n, label, (), (value,), 1, 14 + n) for n, value in enumerate(values)),
    )


def test_a_metric_of_rank_0s_part_is_suspected() -> None:
    found = find(audited(evaluating(0), evaluating(1), log_tails=PRINTS_ACCURACY))

    assert (found.code, found.severity, found.certain) == ("RW780", "info", False)
    assert "that of rank 0's shard only" in found.summary and "rank 0 32, rank 1 32" in found.why


@pytest.mark.parametrize(
    ("a", "b", "tails"),
    [
        (evaluating(7), evaluating(7), PRINTS_ACCURACY),
        (evaluating(0), evaluating(1), {**PRINTS_ACCURACY, "rank-1": "accuracy 0.9"}),
        (evaluating(0, backwards=3), evaluating(1, backwards=3), PRINTS_ACCURACY),
        (evaluating(0, whole=False), evaluating(1), PRINTS_ACCURACY),
        (evaluating(0), Audit(), PRINTS_ACCURACY),
        (evaluating(0, 32, 0.9), evaluating(1, 32, 0.8), PRINTS_ACCURACY),
    ],
    ids=["the same samples", "both print", "training", "not at its end", "not on all ranks", "reduced, even parts"],
)
def test_what_is_no_metric_of_one_part(a: Audit, b: Audit, tails: dict[str, str]) -> None:
    assert find(audited(a, b, log_tails=tails)) is None


def test_one_number_reduced_over_uneven_parts_is_suspected_to_be_a_mean_of_means() -> None:
    found = find(audited(evaluating(0, 32, 0.9), evaluating(1, 20, 0.5)))

    assert (found.code, found.severity, found.certain) == ("RW781", "info", False)
    assert "rank 0: 0.9 over 32 samples, rank 1: 0.5 over 20 samples" in found.why and lines(found) == {0: 14, 1: 14}


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (evaluating(0, 32, 0.9, 32.0), evaluating(1, 20, 0.5, 20.0)),
        (evaluating(0, 32, 0.9), evaluating(1, 20)),
        (evaluating(0, 32, 0.9, label="gradient of weight"), evaluating(1, 20, 0.5, label="gradient of weight")),
    ],
    ids=["with a count", "on one rank", "gradients"],
)
def test_what_is_no_mean_of_means(a: Audit, b: Audit) -> None:
    assert find(audited(a, b)) is None


def test_a_tensor_with_many_numbers_may_hold_the_count() -> None:
    many = (Reduced("all_reduce", "0", 9, "", (), (), 100, 14),)
    a, b = (replace(one, reduces=one.reduces + many) for one in (evaluating(0, 32, 0.9), evaluating(1, 20, 0.5)))

    assert find(audited(a, b)) is None
