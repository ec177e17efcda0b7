"""The straggler: named by the order of arrival, with the part of a step that it spends longer in than the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rankwise.diagnose import diagnose
from rankwise.diagnose.straggler import find_straggler, slow_rank
from rankwise.evidence.audit import Audit, ForwardSeen, OptimizerSeen, PassBegun, Times
from rankwise.evidence.records import Call
from rankwise.findings import Finding
from tests.diagnose.jobs import NOW_NS, SECOND, expect, gradients, job, log_of, raised, rank, stack_of
from tests.diagnose.silent.audits import SITES


def notes(*ranks: Any) -> dict[str, Finding]:
    return {finding.code: finding for finding in diagnose(job(*ranks))}


def with_lateness(number: int, late_s: float, *, slots: int = 40, **facts):
    """A rank that enters each collective this long after the others, one collective a second."""
    evidence = rank(number, gradients(slots), **facts)
    ended_ns = NOW_NS - 10 * SECOND + int(late_s * SECOND)
    return replace(evidence, collectives=log_of(gradients(slots), ended_ns=ended_ns))


@pytest.mark.parametrize("slow", [0, 1, 3])
def test_a_rank_that_arrives_last_again_and_again(slow: int) -> None:
    found = notes(*[with_lateness(r, 0.4 if r == slow else 0.002 * r) for r in range(4)])

    expect(found["RW503"], "RW503", [slow], f"rank {slow}", "last in 39 of 39", deadlock=False)


@pytest.mark.parametrize(
    "ranks",
    [
        [with_lateness(r, 0.01 * r) for r in range(4)],
        [with_lateness(r, 0.4 if r == 2 else 0, slots=6) for r in range(4)],
        [with_lateness(r, 0.4 if r == 2 else 0, host=f"node-{r}") for r in range(4)],
        [with_lateness(0, 0.0)],
        [with_lateness(r, 0.4) for r in range(4)],
    ],
    ids=["a few milliseconds", "too few collectives", "clocks of several hosts", "alone", "all alike"],
)
def test_no_straggler_is_named_without_reason(ranks) -> None:
    assert "RW503" not in notes(*ranks)


@pytest.mark.parametrize(("backward_ms", "is_told"), [((300, 300), True), ((360, 260), False)])
def test_a_straggler_is_slow_in_its_backward_only_if_that_is_as_long_as_the_others(backward_ms, is_told: bool) -> None:
    """The others wait for it in theirs."""
    ranks = [with_lateness(r, 0.3 * r) for r in range(2)]
    spent = [Audit(times=(Times(40, 40 * 500, 0, 0, 0, 40 * backward, 0, 0, 0),)) for backward in backward_ms]

    found = notes(*[replace(one, audit=audit) for one, audit in zip(ranks, spent, strict=True)])

    assert ("in the backward, which is as long on the others" in found["RW503"].why) is is_told
    assert "rank 0 " not in found["RW503"].why  # numbers that do not differ explain nothing


def test_taking_turns_is_no_straggling() -> None:
    ranks = []
    for number in range(4):
        log = log_of(gradients(40))
        for i in range(40):
            log.created_ns[i] += int(0.4 * SECOND) if i % 4 == number else 0
        ranks.append(replace(rank(number, gradients(40)), collectives=log))

    assert "RW503" not in notes(*ranks)


def test_a_rank_that_was_held_up_once_stays_behind_where_calls_return_at_once() -> None:
    ranks = []
    for number in range(2):
        log = log_of(gradients(40))
        for i in range(40):
            log.created_ns[i] = log.created_ns[0] + i * SECOND // 1000 + (24 * SECOND if number == 0 else 0)
        ranks.append(replace(rank(number, gradients(40)), collectives=log))

    assert "RW503" not in notes(*ranks)


def test_a_straggler_is_told_of_healthy_jobs_only() -> None:
    slow = [with_lateness(r, 0.4 if r == 1 else 0) for r in range(3)]
    evidence = job(*slow, raised(with_lateness(3, 0)), exit_code=1)

    assert [finding.code for finding in diagnose(evidence)] == ["RW401"]


@pytest.mark.parametrize(("slots", "is_told"), [(20, True), (19, False)])
def test_a_straggler_is_told_from_twenty_collectives_on(slots: int, is_told: bool) -> None:
    assert (find_straggler(job(*[with_lateness(r, 0.4 * r, slots=slots) for r in range(2)])) is not None) == is_told


@pytest.mark.parametrize(("late", "is_told"), [(6, True), (7, False)])
def test_it_has_to_be_the_last_nearly_always(late: int, is_told: bool) -> None:
    """Of the 39 that are looked at, the other one is the last at some."""
    ranks = []
    for number in range(2):
        log = log_of(gradients(40))
        for i in range(40):
            log.created_ns[i] += int(0.4 * SECOND) if (i % 6 == 0 and i <= 6 * (late - 1)) == (number == 0) else 0
        ranks.append(replace(rank(number, gradients(40)), collectives=log))

    assert (find_straggler(job(*ranks)) is not None) == is_told


def spending(number: int, late_s: float = 0.0, wall: float = 500.0, **facts: Any) -> Any:
    """A rank with its milliseconds of a step, by part."""
    parts = {"data": 0.0, "forward": 0.0, "backward": 0.0, "optimizer": 0.0, "collective": 0.0, "save": 0.0}
    given = {name: facts.pop(name) for name in list(facts) if name in parts}
    times = Times(40, 40 * wall, 0.0, **{name: 40 * ms for name, ms in {**parts, **given}.items()})
    passes = (PassBegun(1, 0, 21, 5, "RandomSampler", True, None, False, False, 64, False, 0, 0),)
    seen = {"passes": passes, "forwards": (ForwardSeen(0, 22, True, True, ()),), "optimizers": (OptimizerSeen(0, 24, 8, 1, 1, 1, 1),)}
    return replace(with_lateness(number, late_s), audit=Audit(sites=SITES, times=(times,), **seen), **facts)


@pytest.mark.parametrize(
    ("part", "words", "line"),
    [
        ({"data": 120.0}, "rank 0 0 ms, rank 1 120 ms a step waiting for its data", 21),
        ({"forward": 120.0}, "in the forward", 22),
        ({"optimizer": 120.0}, "in the optimizer's step", 24),
        ({"wall": 620.0}, "in code between them", 24),
    ],
)
def test_the_part_of_the_step_that_takes_longer_is_told_with_its_line(part: dict[str, float], words: str, line: int) -> None:
    found = find_straggler(job(spending(0), spending(1, 0.3, **{"wall": 620.0, **part})))

    assert words in found.why and found.culprits[0].line == line


def test_less_than_two_fifths_of_the_delay_explain_nothing() -> None:
    found = find_straggler(job(spending(0), spending(1, 0.3, wall=619.0, data=119.0)))

    assert "it spends" not in found.why


def test_the_line_it_was_seen_at_most_often_comes_first() -> None:
    glimpses = tuple(stack_of(f"train.py:{n} crawl") for n in (31, 32, 32)) + tuple(stack_of("train.py:40 rest") for _ in range(2))

    found = find_straggler(job(spending(0), spending(1, 0.3, wall=620.0, data=120.0, glimpses=glimpses)))

    assert found.culprits[0].line == 32


def quick(number: int, late_ms: float) -> Any:
    """A hundred collectives a second."""
    log = log_of(gradients(40))
    for i in range(40):
        log.created_ns[i] = NOW_NS + int((10 * i + late_ms) * SECOND // 1000)
    return replace(rank(number, gradients(40)), collectives=log)


def test_a_short_delay_is_told_only_where_the_steps_show_it_too() -> None:
    assert find_straggler(job(quick(0, 0), quick(1, 9))) is None
    parts = spending(0, wall=10.0).audit, spending(1, wall=19.0, data=9.0).audit

    assert find_straggler(job(*[replace(quick(r, 9 * r), audit=audit) for r, audit in enumerate(parts)])).code == "RW503"


def test_a_short_delay_that_no_part_of_the_step_explains_is_not_told() -> None:
    """Two healthy ranks, one of whose cores another program used."""
    parts = spending(0, wall=33.0, backward=11.0).audit, spending(1, wall=33.0, backward=10.0).audit

    assert find_straggler(job(*[replace(quick(r, 19 * r), audit=audit) for r, audit in enumerate(parts)])) is None


def test_a_rank_that_has_joined_early_only_answers_the_others() -> None:
    ranks = [with_lateness(r, 0.4 * r) for r in range(2)]
    training = replace(ranks[0], calls=(Call("forward", NOW_NS, NOW_NS + 1),))

    assert find_straggler(job(training, ranks[1])) is None
    assert find_straggler(job(training, replace(ranks[1], calls=training.calls))) is not None


# -- while the job runs -------------------------------------------------------------------------------------------------------


def busy_for(number: int, ms: float, *, steps: int = 3, backward: float = 0.0) -> Any:
    return replace(rank(number), audit=Audit(times=(Times(steps, steps * (ms + backward), 0, 0, 0, steps * backward, 0, 0, 0),)))


@pytest.mark.parametrize(
    ("own_ms", "others_ms", "is_slow"),
    [(19, 10, True), (18, 10, False), (121, 100, True), (120, 100, False)],
    ids=["over 8 ms", "8 ms", "over a fifth", "a fifth"],
)
def test_a_rank_that_is_busy_much_longer_is_slow(own_ms: float, others_ms: float, is_slow: bool) -> None:
    ranks = [busy_for(0, others_ms), busy_for(1, own_ms), busy_for(2, others_ms, backward=500)]

    assert slow_rank(job(*ranks)) == (1 if is_slow else None)


def test_nobody_is_slow_while_a_rank_has_told_nothing() -> None:
    assert slow_rank(job(busy_for(0, 10), busy_for(1, 100, steps=2))) is None
    assert slow_rank(job(busy_for(0, 100))) is None
