"""Weights that differ between ranks: what is told as their cause, and how sure of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rankwise.diagnose.silent.diverged import find
from rankwise.evidence.audit import Audit, Loaded, OptimizerSeen, PassBegun, Reduced, Window
from rankwise.findings import Finding
from tests.diagnose.silent.audits import DDP, audited, lines, row, step

WRAPPED = (DDP,)


def rank_with(weights: list[int], gradients: list[int] | None = None, **facts: Any) -> Audit:
    """A rank by the checksums of its weights at each step, and of its gradients, which are the same on all ranks if not given."""
    of_step = facts.pop("of_step", {})
    gradients = gradients or [5] * len(weights)
    rows = [row(weight=weight, gradient=gradient, is_reduced=of_step.get("of_model", True)) for weight, gradient in zip(weights, gradients)]
    steps = tuple(step(n, one, **of_step) for n, one in enumerate(rows))
    return Audit(steps=steps, **{"wrappers": WRAPPED, **facts})


def pair(a: Audit, b: Audit, exit_code: int | None = 0, **facts: Any) -> Finding | None:
    return find(audited(a, b, exit_code=exit_code, **facts))


def told(finding: Finding | None) -> tuple[str, str, bool] | None:
    return None if finding is None else (finding.code, finding.severity, finding.certain)


# -- from the same gradients --------------------------------------------------------------------------------------------------


def test_weights_that_stay_equal_are_no_finding() -> None:
    assert pair(rank_with([1, 2, 3]), rank_with([1, 2, 3])) is None


def test_weights_that_come_apart_are_told_with_the_step() -> None:
    found = pair(rank_with([1, 2, 3, 4]), rank_with([1, 2, 8, 9]))

    assert told(found) == ("RW770", "warning", True)
    assert "weight is equal until step 1, different at step 2" in found.summary
    assert "norm 3 on rank 0, 8 on another" in found.why
    assert lines(found) == {0: 20, 1: 20}


def test_one_step_at_which_weights_differ_is_not_enough() -> None:
    assert pair(rank_with([1, 2, 3]), rank_with([1, 2, 9])) is None


def test_other_settings_of_the_optimizer_are_named_as_the_cause() -> None:
    built = {"optimizers": (OptimizerSeen(0, 20, 8, 1, 1, 1, 1),)}
    found = pair(rank_with([1, 2, 3], **built), rank_with([1, 8, 9], of_step={"settings": "lr=0.2"}, **built))

    assert told(found) == ("RW775", "warning", True)
    assert "on rank 1 than on rank 0" in found.summary and "lr=0.1 against lr=0.2" in found.why
    assert lines(found) == {0: 8, 1: 8}


def test_other_momenta_before_the_weights_differ_are_named_as_the_cause() -> None:
    assert told(pair(rank_with([1, 2, 3], of_step={"state": 1}), rank_with([1, 8, 9], of_step={"state": 2}))) == ("RW776", "warning", True)


def test_momenta_that_differ_only_after_the_weights_did_are_not() -> None:
    later = rank_with([7, 8, 9], of_step={"state": 1})
    later = replace(later, steps=(later.steps[0], *(replace(one, state=2) for one in later.steps[1:])))

    assert told(pair(rank_with([1, 2, 3], of_step={"state": 1}), later)) == ("RW770", "warning", True)


@pytest.mark.parametrize(
    ("loads_of_one", "code"),
    [
        ((Loaded("model", 15, 1, 0),), "RW773"),
        ((Loaded("optimizer", 15, 0, 0),), "RW773"),
        ((Loaded("model", 15, 0, 0),), "RW770"),  # before DDP wrapped it and made all weights the same
    ],
)
def test_a_checkpoint_loaded_by_one_rank_is_named_as_the_cause(loads_of_one: tuple[Loaded, ...], code: str) -> None:
    found = pair(rank_with([1, 2, 3], loads=loads_of_one), rank_with([7, 8, 9]))

    assert found.code == code
    if code == "RW773":
        assert f"only rank 0 loaded the checkpoint's {loads_of_one[0].what} state" in found.summary and lines(found) == {0: 15}


def test_a_checkpoint_loaded_by_all_is_not() -> None:
    loads = (Loaded("model", 15, 1, 0),)

    assert told(pair(rank_with([1, 2, 3], loads=loads), rank_with([7, 8, 9], loads=loads))) == ("RW770", "warning", True)


# -- from gradients that differ -----------------------------------------------------------------------------------------------


def not_reduced(pattern: str, **facts: Any) -> Finding | None:
    places = {"s": 10, "n": 11, "-": 13}
    one = {"windows": (Window(0, pattern, 0, 4, 20, 1, places),)}
    return pair(rank_with([1, 2, 3, 4], [5, 5, 5, 5], **one), rank_with([1, 6, 7, 8], [6, 6, 6, 6], **one), **facts)


@pytest.mark.parametrize(
    ("pattern", "says", "line"),
    [
        ("zsn", "the wrong micro-step synchronises", 11),
        ("znn", "every forward before the step was made inside no_sync()", 11),
        ("z-", "did not go through the DDP wrapper", 13),
        ("zs-", "did not go through the DDP wrapper", 13),
        ("zns", "something changed them after that, differently on each rank", 20),
    ],
)
def test_gradients_that_were_not_reduced_are_told_with_the_reason(pattern: str, says: str, line: int) -> None:
    found = not_reduced(pattern)

    assert told(found) == ("RW760", "warning", True)
    assert says in found.why and "seen at 4 of 4 steps" in found.why
    assert lines(found) == {0: line, 1: line}


def test_a_step_without_any_backward_is_told_as_such() -> None:
    found = pair(rank_with([1, 2, 3], [5, 5, 5]), rank_with([1, 7, 8], [6, 6, 6]))

    assert told(found) == ("RW760", "warning", True) and "no backward() came before the step" in found.why


def test_the_call_of_the_inner_module_is_pointed_at() -> None:
    source = "\n" * 11 + "out = model.module(x)\n"

    assert lines(not_reduced("z-", sources={"train.py": source})) == {0: 12, 1: 12}


def test_gradients_that_differ_at_a_few_steps_are_not_the_cause() -> None:
    few = rank_with([7, 8, 9, 10, 11], [6, 6, 5, 5, 5])

    assert told(pair(rank_with([1, 2, 3, 4, 5]), few)) == ("RW770", "warning", True)


def test_norms_before_and_after_the_reduction_are_compared() -> None:
    a, b = rank_with([1, 2, 3], [5, 5, 5]), rank_with([1, 7, 8], [6, 6, 6])
    a, b = (replace(one, steps=tuple(replace(s, local=(("weight", norm),)) for s in one.steps)) for one, norm in ((a, 2.0), (b, None)))

    assert "had norms 2 and not finite as the last backward computed it, 5 and 6 at the step" in pair(a, b).why


# -- parameters that DDP does not know ----------------------------------------------------------------------------------------


def late(count: int, gradient: int) -> Audit:
    rows = [(row(), row("head", gradient=gradient, weight=gradient * 100 + n, is_reduced=False)) for n in range(count)]
    return Audit(steps=tuple(step(n, *both) for n, both in enumerate(rows)), wrappers=WRAPPED)


def test_a_parameter_that_ddp_does_not_know_is_named() -> None:
    found = pair(late(3, 1), late(3, 2), sources={"train.py": "\n" * 5 + "head.requires_grad_(True)\n"})

    assert told(found) == ("RW771", "warning", True)
    assert "gradients of parameter head are not reduced" in found.summary
    assert lines(found) == {0: 6, 1: 6}, "the line after the wrapping that unfreezes"


def test_a_line_before_the_wrapping_is_not_the_one_that_unfreezes() -> None:
    found = pair(late(3, 1), late(3, 2), sources={"train.py": "head.requires_grad_(False)\n" * 3})

    assert lines(found) == {0: 20, 1: 20}


def test_such_a_parameter_has_to_be_seen_at_three_steps_where_there_are_as_many() -> None:
    rest = tuple(step(n, row()) for n in range(2, 4))
    a, b = (replace(late(2, gradient), steps=late(2, gradient).steps + rest) for gradient in (1, 2))

    assert told(pair(a, b)) != ("RW771", "warning", True)
    assert told(pair(late(2, 1), late(2, 2))) == ("RW771", "warning", True)


# -- averaged on purpose ------------------------------------------------------------------------------------------------------


def averaged(label: str = "", numel: int = 1000, **facts: Any) -> tuple[Reduced, ...]:
    return (Reduced("all_reduce", "0", 0, label, (), (), numel, 1, **{"t": 9, **facts}),)


@pytest.mark.parametrize(
    "audit",
    [
        rank_with([1, 2, 3, 4], reduces=averaged("parameter weight", 8)),
        rank_with([1, 2, 3, 4], reduces=averaged()),  # as many numbers as the model has
        rank_with([1, 2, 3, 4], of_step={"hooked": True}),
    ],
)
def test_weights_that_are_averaged_now_and_then_are_a_note(audit: Audit) -> None:
    found = pair(audit, rank_with([1, 7, 8, 9]))

    assert told(found) == ("RW770", "info", False) and "local SGD" in found.why


def test_weights_that_met_again_are_a_note() -> None:
    assert told(pair(rank_with([1, 2, 3, 4]), rank_with([1, 8, 9, 4]))) == ("RW770", "info", False)


@pytest.mark.parametrize("reduces", [averaged(numel=999), averaged("gradient of weight"), averaged("parameter weight", t=-1)])
def test_other_reductions_are_no_averaging(reduces: tuple[Reduced, ...]) -> None:
    assert told(pair(rank_with([1, 2, 3, 4], reduces=reduces), rank_with([1, 7, 8, 9]))) == ("RW770", "warning", True)


@pytest.mark.parametrize(("num_steps", "exit_code", "is_told"), [(24, None, False), (25, None, True), (24, 0, True)])
def test_an_averaging_is_waited_for_while_the_job_is_young(num_steps: int, exit_code: int | None, is_told: bool) -> None:
    a, b = rank_with(list(range(num_steps))), rank_with([0, *range(100, 99 + num_steps)])

    assert (pair(a, b, exit_code) is not None) == is_told


# -- without DDP --------------------------------------------------------------------------------------------------------------

LOADER = PassBegun(1, 0, 20, 5, "DistributedSampler", False, 0, True, True, 64, False, 0, 0)
BY_HAND = (Reduced("all_reduce", "0", 0, "gradient of weight", (), (), 8, 1),)


def bare(weights: list[int], gradients: list[int] | None = None, **facts: Any) -> Audit:
    return rank_with(weights, gradients, of_step={"of_model": False}, wrappers=(), **facts)


@pytest.mark.parametrize(
    ("facts", "severity", "says"),
    [
        ({}, "info", "are not reduced"),
        ({"passes": (LOADER,)}, "warning", "are not reduced"),
        ({"reduces": BY_HAND}, "warning", "still differ after being reduced by hand"),
    ],
)
def test_replicas_that_began_equal_and_train_apart_are_suspected(facts: dict[str, Any], severity: str, says: str) -> None:
    found = pair(bare([1, 2, 3], **facts), bare([1, 7, 8], [6, 6, 6], **facts))

    assert told(found) == ("RW714", severity, False) and says in found.summary


def test_replicas_that_average_their_weights_are_a_note() -> None:
    reduces = averaged("parameter weight", 8)

    assert told(pair(bare([1, 2, 3], reduces=reduces), bare([1, 7, 8], [6, 6, 6]))) == ("RW770", "info", False)


def test_models_that_never_were_equal_are_an_ensemble() -> None:
    assert pair(bare([1, 2, 3]), bare([6, 7, 8], [6, 6, 6])) is None


def test_but_not_where_their_gradients_are_averaged_by_hand() -> None:
    found = pair(bare([1, 2, 3], reduces=BY_HAND), bare([6, 7, 8], reduces=BY_HAND))

    assert told(found) == ("RW770", "warning", True) and "from the first step on" in found.summary
    assert pair(bare([1, 2, 3], reduces=BY_HAND), bare([6, 7, 8], [6, 6, 6], reduces=BY_HAND)) is None, "nor are their gradients the same"


def test_what_could_not_be_looked_at_does_not_differ() -> None:
    unseen = Audit(steps=tuple(step(n, ("weight", True, None, None, None, None)) for n in range(3)), wrappers=WRAPPED)

    assert pair(rank_with([1, 2, 3]), unseen) is None


def test_ranks_that_hold_other_parameters_are_not_compared() -> None:
    a, b = (Audit(steps=tuple(step(n, row(name, weight=n + at)) for n in range(4)), wrappers=WRAPPED) for at, name in ((0, "a"), (9, "b")))

    assert find(audited(a, b, exit_code=0)) is None
