"""When a deadlock is proven, and when a job moves again."""

from __future__ import annotations

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
