"""What a kernel function tells of a rank that sleeps in it."""

from __future__ import annotations

import pytest

from rankwise.diagnose.kernel_wait import kernel_wait
from rankwise.evidence.records import RankEvidence, Sample


def slept_in(*functions: str) -> RankEvidence:
    return RankEvidence(0, samples=tuple(Sample(i, "S", wchan=function) for i, function in enumerate(functions)))


@pytest.mark.parametrize(
    ("function", "code"),
    [("n_tty_read", "RW318"), ("wait_woken", "RW306"), ("pipe_read", "RW305"), ("futex_wait_queue", "RW303"), ("do_wait", "RW315")],
)
def test_a_rank_that_sleeps_in_one_place(function: str, code: str) -> None:
    found = kernel_wait(slept_in(function, function, function))

    assert found is not None
    assert found[0] == code


def test_a_rank_that_waits_for_the_keyboard_is_said_to() -> None:
    found = kernel_wait(slept_in(*["n_tty_read"] * 3))

    assert found is not None
    assert "type" in found[1]


@pytest.mark.parametrize("functions", [("n_tty_read",), ("n_tty_read", "n_tty_read", "do_wait"), ("", "", ""), ("unknown",) * 3])
def test_what_tells_nothing(functions: tuple[str, ...]) -> None:
    assert kernel_wait(slept_in(*functions)) is None
