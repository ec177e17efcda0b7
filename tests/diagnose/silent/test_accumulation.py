"""Accumulated gradients: which windows between two steps lose some, scale them wrongly or reduce them too often."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rankwise.diagnose.silent.accumulation import find_not_divided, find_reduced_each_time, find_short_window, find_thrown_away
from rankwise.evidence.audit import Audit, Left, Times, Window
from tests.diagnose.silent.audits import DDP, audited, lines, step

PLACES = {"s": 10, "n": 11, "z": 12, "-": 13}
GOOD = "znns"


def window(pattern: str, count: int = 5, **facts: Any) -> Window:
    return Window(0, pattern, **{"first": 0, "count": count, "site": 20, "lines": 1, "places": PLACES, **facts})


def windows(*found: Window, **facts: Any) -> Audit:
    return Audit(windows=found, **facts)


# -- gradients thrown away ----------------------------------------------------------------------------------------------------


def test_zero_grad_before_each_backward_throws_away_all_but_the_last() -> None:
    found = find_thrown_away(audited(windows(window("znznzs")), windows(window(GOOD))))

    assert (found.code, found.severity, found.certain) == ("RW761", "warning", True)
    assert "only 1 of 3 micro-steps reach the step" in found.summary
    assert lines(found) == {0: PLACES["z"]}


def test_it_is_a_note_where_gradients_were_also_changed_by_hand() -> None:
    found = find_thrown_away(audited(windows(window("znznsm"))))

    assert (found.severity, found.certain) == ("info", False)


@pytest.mark.parametrize(
    "audit",
    [
        windows(window(GOOD)),
        windows(window("nnsz")),  # after the last backward: nothing comes before the step
        windows(window("nn|znn")),  # the data had ended: that is a short window
        windows(window("zszs", lines=2)),  # two losses, each with its own backward
        windows(window("zszs", count=2)),  # too few to be a habit
        windows(window("zszs", count=5), window("zs", count=4)),  # not what it mostly does
    ],
)
def test_what_throws_nothing_away(audit: Audit) -> None:
    assert find_thrown_away(audited(audit)) is None


def test_the_habit_is_seen_from_three_windows_and_three_in_five() -> None:
    assert find_thrown_away(audited(windows(window("znzs", count=3), window("zs", count=2)))) is not None


@pytest.mark.parametrize(
    ("pattern", "gradient", "num_steps", "is_found"),
    [("sz", None, 3, True), ("sz", 0.0, 3, True), ("sz", None, 2, False), ("sz", 1.5, 3, False), ("zs", None, 3, False)],
)
def test_steps_that_find_no_gradient_after_a_zero_grad(pattern: str, gradient: float | None, num_steps: int, is_found: bool) -> None:
    checksum = None if gradient is None else 4
    steps = tuple(step(n, ("weight", True, checksum, gradient, 7, 1.0)) for n in range(num_steps))

    found = find_thrown_away(audited(windows(window(pattern), steps=steps)))

    assert (found is not None) == is_found
    if found is not None:
        assert "between backward and step" in found.summary and found.certain and lines(found) == {0: PLACES["z"]}


# -- the loss divided ---------------------------------------------------------------------------------------------------------


def mean_of(divisor: float | None, pattern: str = GOOD, **facts: Any) -> Audit:
    return windows(window(pattern, is_mean=True, root="MseLossBackward0", divisor=divisor, **facts))


@pytest.mark.parametrize(("divisor", "how_large"), [(None, "3 times"), (2.0, "1.5 times"), (3.04, "0.986842 times")])
def test_a_mean_loss_not_divided_by_the_length_of_the_window_is_only_noted(divisor: float | None, how_large: str) -> None:
    found = find_not_divided(audited(mean_of(divisor)))

    assert (found.code, found.severity, found.certain) == ("RW762", "info", False)
    assert how_large in found.summary


@pytest.mark.parametrize(
    "audit",
    [
        mean_of(3.0),
        mean_of(3.02),
        mean_of(1.0),
        mean_of(None, "zs"),
        mean_of(None, "zngngsg"),
        mean_of(None, "znnsm"),
        mean_of(None, "znznzs"),
        windows(window(GOOD, is_mean=False)),
    ],
    ids=["by 3", "within 1 %", "by 1", "one backward", "scaled", "by hand", "thrown away", "a sum"],
)
def test_what_need_not_be_divided_or_is(audit: Audit) -> None:
    assert find_not_divided(audited(audit)) is None


# -- the last window of an epoch ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "code", "says", "severity", "certain"),
    [
        ("znn|znns", "RW763", "is dropped: 2 micro-steps of 3", "warning", True),
        ("znn|ns", "RW763", "its 2 micro-steps are mixed into the next epoch's first step", "info", False),
        ("zn|s", "RW763", "its 1 micro-steps are mixed", "info", False),
    ],
)
def test_a_short_window_that_is_not_stepped(last: str, code: str, says: str, severity: str, certain: bool) -> None:
    found = find_short_window(audited(windows(window(GOOD), window(last, count=1, first=15))))

    assert (found.code, found.severity, found.certain) == (code, severity, certain)
    assert says in found.summary


def test_a_short_window_with_the_usual_divisor_is_too_small() -> None:
    found = find_short_window(audited(windows(window(GOOD, divisor=3.0), window("zns", count=1, first=15, divisor=3.0))))

    assert "2 micro-steps, each loss divided by 3" in found.summary and not found.certain


@pytest.mark.parametrize(
    "last",
    [
        window("zns", count=1, first=15, divisor=2.0),  # divided by its own length
        window("zns", count=1, first=0, divisor=3.0),  # before the first step: the probe may have come late
        window(GOOD, count=1, first=15, divisor=3.0),  # as long as the others
        window("znn|", count=1, first=15),  # stepped at the data's end
    ],
)
def test_a_short_window_that_is_right(last: Window) -> None:
    assert find_short_window(audited(windows(window(GOOD, divisor=3.0), last))) is None


@pytest.mark.parametrize(("exit_code", "is_found"), [(0, True), (None, False)])
def test_gradients_left_at_the_end_are_told_once_the_job_is_over(exit_code: int | None, is_found: bool) -> None:
    found = find_short_window(audited(windows(window(GOOD), left=(Left("zn|"),)), exit_code=exit_code))

    assert (found is not None) == is_found


# -- reduced too often --------------------------------------------------------------------------------------------------------


def test_every_micro_step_that_reduces_costs_a_reduction() -> None:
    times = Times(10, 1000, 0, 0, 0, 400, 0, 0, 0)
    found = find_reduced_each_time(audited(windows(window("zsss"), wrappers=(replace(DDP, bytes=2_000_000),), times=(times,))))

    assert (found.code, found.severity, found.certain) == ("RW511", "info", True)
    assert "3 times a step" in found.summary and "4.0 MB a step" in found.why and "40 ms in backward" in found.why
    assert lines(found) == {0: PLACES["s"]}


@pytest.mark.parametrize("pattern", [GOOD, "znsns", "zs", "zszs"])
def test_windows_that_do_not_reduce_each_time_or_lose_gradients_anyway(pattern: str) -> None:
    assert find_reduced_each_time(audited(windows(window(pattern)))) is None
