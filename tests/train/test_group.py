"""The group's rank and size, also without a group; and work of rank 0 that the others wait for."""

from __future__ import annotations

import pytest

from rankwise.train import group
from tests.ports import free_port
from tests.train.farm import Farm

JOBS = "tests.train.jobs_metrics"


def test_without_a_group_there_is_one_rank_and_its_errors_stay_its_own() -> None:
    def fails() -> None:
        raise KeyError("its own")

    assert (group.rank(), group.world_size(), group.is_distributed()) == (0, 1, False)
    assert group.gathered("thing") == ["thing"] and group.gathered_numbers([1.0]) == [[1.0]]
    assert group.rank_zero(lambda: group.rank_zero(lambda: "inner") + " and outer") == "inner and outer"
    with pytest.raises(KeyError, match="its own"):
        group.rank_zero(fails)


def test_work_of_rank_0_may_take_longer_than_a_collective(farm: Farm) -> None:
    ranks = farm.run("rank_zero_works_long", 2, jobs=JOBS, seconds=2.5)

    assert [result for result, _ in ranks] == [{"pid": 0}, {"pid": 0}]
    assert all(seconds > 2.4 for _, seconds in ranks)


def test_the_others_are_told_when_rank_0_fails(farm: Farm) -> None:
    outcomes = farm.ranks("rank_zero_fails", 3, jobs=JOBS)

    assert "ValueError" in outcomes[0].error and outcomes[0].code is None, "rank 0's own error stays its own"
    assert [outcome.code for outcome in outcomes[1:]] == ["RW711", "RW711"]
    assert "no such file" in outcomes[1].error


def test_what_rank_0_gives_may_be_larger_than_a_value_of_the_store(farm: Farm) -> None:
    size = 9 << 20

    assert farm.run("rank_zero_gives_much", 3, jobs=JOBS, num_bytes=size, port=free_port()) == [(size, "the next one")] * 3


def test_work_of_rank_0_inside_of_its_work_is_nothing_the_others_hear_of(farm: Farm) -> None:
    assert farm.run("rank_zero_in_rank_zero", 2, jobs=JOBS) == [("inner and outer", "the next one")] * 2


def test_a_call_of_all_ranks_in_work_of_rank_0_is_told_and_not_waited_for(farm: Farm) -> None:
    outcomes = farm.ranks("means_in_rank_zero", 2, jobs=JOBS, timeout_s=20)

    assert [outcome.code for outcome in outcomes] == ["RW711", "RW711"], outcomes
    assert "all ranks must make" in outcomes[0].error


def test_rank_0_may_call_a_wrapped_model_alone(farm: Farm) -> None:
    (first, _), (second, _) = ranks = farm.run("evaluated_by_rank_zero", 2, jobs=JOBS)

    assert first == second and len(set(first)) == 2
    assert ranks[0][1] != ranks[1][1], "each rank's own statistics since the last forward that all made"


@pytest.mark.parametrize(
    ("how", "said"), [("gathered", "rank 1 is in predictions.gather(), rank 0 in means.compute()"), ("alone", "rank 0 was in rank_zero(")]
)
def test_a_call_that_some_ranks_left_out_is_told(farm: Farm, how: str, said: str) -> None:
    outcomes = farm.ranks("calls_left_out", 2, jobs=JOBS, how=how)

    assert outcomes[1].code == "RW208" and said in outcomes[1].error, outcomes
