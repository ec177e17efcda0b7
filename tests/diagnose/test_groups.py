"""Groups that some ranks did not create, or created in another order."""

from __future__ import annotations

import pytest

from rankwise.diagnose import diagnose
from tests.diagnose.jobs import (
    FIVE,
    alarms,
    busy,
    cast,
    did,
    expect,
    in_call,
    job,
    new_group,
    others,
    root,
    waiting,
    waiting_ranks,
)


@pytest.mark.parametrize(("world_size", "culprits"), [(4, [2]), (4, [0]), (4, [2, 3]), (8, [7])])
def test_rw210_some_ranks_did_not_create_the_group(world_size: int, culprits: list[int]) -> None:
    evidence = job(
        *cast(
            culprits,
            world_size,
            lambda r: waiting(r, "all_reduce", "train.py:9 main"),
            lambda r: in_call(r, "new_group", "train.py:5 main", groups=(new_group(0, 1, name="1", done=False),)),
        )
    )

    found = root(evidence)

    expect(found, "RW210", culprits, "new_group([0, 1])", at="train.py:9")
    assert sorted(waiting_ranks(found)) == others(culprits, world_size)


def test_rw210_a_skipped_group_shows_at_the_next_one() -> None:
    pair, whole = new_group(0, 1, name="1"), new_group(0, 1, 2, name="2", at="train.py:7 main", done=False)
    late = new_group(0, 1, 2, name="1", at="train.py:7 main", done=False)
    evidence = job(
        in_call(0, "new_group", "train.py:7 main", groups=(pair, whole)),
        in_call(1, "new_group", "train.py:7 main", groups=(pair, whole)),
        in_call(2, "new_group", "train.py:7 main", groups=(late,)),
    )

    expect(root(evidence), "RW210", [2], "new_group([0, 1])", "rank 2")


def test_rw211_groups_in_another_order() -> None:
    def rank_with(r: int, *pairs: tuple[int, int]):
        groups = tuple(new_group(*pair, name=str(i + 1), at=f"train.py:{5 + i} main", done=False) for i, pair in enumerate(pairs))
        return in_call(r, "new_group", "train.py:6 main", groups=groups)

    usual, swapped = ((0, 1), (2, 3)), ((2, 3), (0, 1))
    evidence = job(*cast([3], 4, lambda r: rank_with(r, *swapped), lambda r: rank_with(r, *usual)))

    found = root(evidence)

    expect(found, "RW211", [3], "new_group([0, 1])", "new_group([2, 3])")
    assert "order" in found.why


GROUPS = (new_group(0, 1, name="1"), new_group(2, 3, name="2"))
HEALTHY_GROUPS = {
    "all made the same": [busy(r, groups=GROUPS) for r in range(4)],
    "one is still on its way": [in_call(r, "new_group", groups=GROUPS) if r else busy(r, groups=GROUPS[:1]) for r in range(4)],
    "some went on with their own": [waiting(r, group="1", groups=GROUPS) if r == 0 else busy(r, groups=GROUPS) for r in range(4)],
    "one is still in the broadcast before it": [
        waiting(3, "broadcast", "train.py:4 main", peer=0, groups=GROUPS[:1]),
        *[in_call(r, "new_group", groups=GROUPS, after=[*FIVE, *did("broadcast", peer=0)]) for r in range(3)],
    ],
}


@pytest.mark.parametrize("kind", HEALTHY_GROUPS)
def test_groups_that_are_fine_raise_no_alarm(kind: str) -> None:
    assert alarms(job(*HEALTHY_GROUPS[kind])) == []


ROW, COLUMN = new_group(0, 1, name="1"), new_group(2, 3, name="1")


def test_groups_that_only_their_members_made_are_told_but_a_job_that_works_is_not_stopped() -> None:
    evidence = job(
        waiting(0, group="1", groups=(ROW,)), busy(1, groups=(ROW,)), busy(2, groups=(COLUMN,)), waiting(3, group="1", groups=(COLUMN,))
    )

    found = diagnose(evidence)

    assert not [finding for finding in found if finding.deadlock]
    assert {place.rank for place in found[0].culprits} <= {0, 1, 2, 3}


def test_a_groups_members_are_those_that_the_waiting_rank_knows() -> None:
    evidence = job(
        busy(0, groups=(ROW,), after=[*FIVE, *did(group="1")]),
        busy(1, groups=(ROW,), after=[*FIVE, *did(group="1")]),
        waiting(2, group="1", groups=(COLUMN,)),
        waiting(3, group="1", groups=(COLUMN,)),
    )

    found = [finding for finding in diagnose(evidence) if finding.code.startswith("RW3")]

    assert not [place.rank for finding in found for place in finding.culprits if place.rank in (0, 1)]
