"""When a deadlock is proven, and when a job moves again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from rankwise.launch.pace import Pace

S = 1_000_000_000
T = 1_000 * S


def test_a_deadlock_is_proven_by_ranks_that_did_not_move_between_two_looks() -> None:
    pace = Pace(None)

    assert not pace.is_confirmed({0: 7, 1: 9}, T, 1.0)
    assert not pace.is_confirmed({0: 7, 1: 9}, T + S // 2, 1.0)
    assert pace.is_confirmed({0: 7, 1: 9}, T + S, 1.0)


def test_that_the_proof_names_other_ranks_now_does_not_matter() -> None:
    """Two looks at the same deadlock may find different words for it: at each look a culprit was seen at another line."""
    pace = Pace(None)

    assert not pace.is_confirmed({0: 7}, T, 1.0)
    assert not pace.is_confirmed({2: 5}, T + S // 2, 1.0)
    assert pace.is_confirmed({0: 7, 2: 5}, T + S, 1.0)


def test_a_rank_that_moved_was_in_the_middle_of_a_step() -> None:
    pace = Pace(None)

    assert not pace.is_confirmed({0: 7}, T, 1.0)
    assert not pace.is_confirmed({0: 8}, T + S, 1.0)
    assert pace.is_confirmed({0: 8}, T + 2 * S, 1.0)


def test_a_look_that_proves_nothing_begins_it_anew() -> None:
    pace = Pace(None)

    assert not pace.is_confirmed({0: 7}, T, 1.0)
    pace.forget_proof()
    assert not pace.is_confirmed({0: 7}, T + 2 * S, 1.0)


def _job(moved_ns: int, calls: int) -> Any:
    """One rank that made its last of so many calls at a moment."""
    return SimpleNamespace(
        watched=lambda: [1],
        heads=lambda: {1: calls},
        moved_ns={1: moved_ns},
        journals={1: SimpleNamespace(inits=[1])},
        is_alive=lambda pid: True,
    )


def test_the_first_steps_wait_for_connections_and_compilers_once_so_a_stall_is_told_soon_after_them() -> None:
    pace = Pace(None)
    for moved_ns, calls in ((T, 1), (T + 20 * S, 2)):
        pace.note(cast(Any, _job(moved_ns, calls)))

    assert pace.stall_after_s == 30.0


def test_a_pause_in_the_middle_of_the_run_may_come_again_and_longer() -> None:
    pace = Pace(None)
    for moved_ns, calls in ((T, 1000), (T + 20 * S, 1001)):
        pace.note(cast(Any, _job(moved_ns, calls)))

    assert pace.stall_after_s == 100.0


def test_a_job_without_pauses_has_stalled_after_ten_seconds() -> None:
    assert Pace(None).stall_after_s == 10.0
