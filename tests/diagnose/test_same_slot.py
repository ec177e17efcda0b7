"""Ranks that call the same with other arguments, or different things, in one slot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwise.diagnose import diagnose
from tests.diagnose.jobs import (
    FIVE,
    Slot,
    busy,
    cast,
    did,
    echo,
    ended,
    expect,
    finished,
    job,
    others,
    raised,
    rank,
    root,
    waiting,
    waiting_ranks,
)

PLACES = [(4, [0]), (4, [3]), (4, [1]), (8, [0, 5]), (8, [7]), (3, [1])]  # world size, culprits

ARGUMENTS = {
    "RW204": ({"sizes": (8, 2)}, {"sizes": (8, 3)}, "shape"),
    "RW205": ({"dtype": "float32"}, {"dtype": "int64"}, "dtype"),
    "RW206": ({"op": "broadcast", "peer": 0}, {"op": "broadcast", "peer": 1}, "src"),
    "RW207": ({"reduce_op": "SUM"}, {"reduce_op": "MAX"}, "op="),
}


@pytest.mark.parametrize("code", ARGUMENTS)
@pytest.mark.parametrize(("world_size", "culprits"), PLACES)
def test_the_same_collective_with_other_arguments(code: str, world_size: int, culprits: list[int]) -> None:
    usual, odd, word = ARGUMENTS[code]
    evidence = job(*cast(culprits, world_size, lambda r: waiting(r, **odd), lambda r: waiting(r, **usual)))

    found = root(evidence)

    expect(found, code, culprits, word, "#6", at="train.py:10")
    assert sorted(waiting_ranks(found)) == others(culprits, world_size)
    assert all(str(value) in found.summary.replace("[", "(").replace("]", ")") for side in (usual, odd) for value in side.values())


@pytest.mark.parametrize("code", ARGUMENTS)
def test_of_two_ranks_with_other_arguments_neither_is_innocent(code: str) -> None:
    usual, odd, word = ARGUMENTS[code]

    expect(root(job(waiting(0, after=[], **usual), waiting(1, after=[], **odd))), code, [0, 1], word)


def test_of_two_ranks_the_one_whose_dtype_is_not_the_usual_one_is_named() -> None:
    evidence = job(waiting(0, after=did(times=5)), waiting(1, after=did(times=5), dtype="float64"))

    expect(root(evidence), "RW205", [1], "float64")


def test_a_dtype_that_the_code_asks_for_by_name_is_no_proof() -> None:
    source = "counts = torch.tensor([1, 2], dtype=torch.int32)\n"
    found = root(job(waiting(0, after=[]), waiting(1, after=[], dtype="int32"), sources={"train.py": source}))

    assert (found.code, found.certain, [place.rank for place in found.culprits]) == ("RW205", False, [1])


def test_two_sizes_from_two_lines_are_no_proof_that_the_sizes_are_at_fault() -> None:
    evidence = job(waiting(0, sizes=(8, 2)), waiting(1, at="train.py:7 odd", sizes=(1,)))

    assert not root(evidence).certain


@pytest.mark.parametrize("code", ARGUMENTS)
@pytest.mark.parametrize("recorder", [True, False])
def test_other_arguments_that_went_through_are_told_without_stopping_the_job(code: str, recorder: bool) -> None:
    usual, odd, word = ARGUMENTS[code]
    evidence = job(
        *cast(
            [2],
            4,
            lambda r: busy(r, after=[*FIVE, Slot(**odd)], recorder=recorder),
            lambda r: busy(r, after=[*FIVE, Slot(**usual)], recorder=recorder),
        )
    )

    expect(root(evidence), code, [2], word, deadlock=False)


@pytest.mark.parametrize("code", ARGUMENTS)
def test_other_arguments_are_told_even_when_the_job_has_ended_well(code: str) -> None:
    usual, odd, word = ARGUMENTS[code]
    evidence = job(*cast([1], 3, lambda r: finished(r, [*FIVE, Slot(**odd)]), lambda r: finished(r, [*FIVE, Slot(**usual)])), exit_code=0)

    expect(root(evidence), code, [1], word, deadlock=False)


def test_different_shapes_explain_the_crash_that_follows() -> None:
    evidence = job(
        *cast(
            [1],
            3,
            lambda r: replace(ended(waiting(r, sizes=(9,)), "signal", signal=6), alive=False),
            lambda r: echo(waiting(r, sizes=(8,))),
        ),
        exit_code=1,
    )

    assert root(evidence).code == "RW204"
    assert [place.rank for place in root(evidence).culprits] == [1]


def test_rw207_comes_first_where_a_check_of_its_result_failed() -> None:
    failed = [raised(rank(r, [*FIVE, Slot(reduce_op=op)]), "AssertionError", "lost samples") for r, op in enumerate(("SUM", "MAX"))]

    assert [finding.code for finding in diagnose(job(*failed, exit_code=1))][:2] == ["RW207", "RW401"]


def test_a_mismatch_long_before_an_unrelated_error_is_not_its_cause() -> None:
    failed = [raised(rank(r, [Slot(reduce_op=op), *FIVE]), "FileNotFoundError", "no such file") for r, op in enumerate(("SUM", "MAX"))]

    assert [finding.code for finding in diagnose(job(*failed, exit_code=1))][:2] == ["RW401", "RW207"]


def test_of_two_dtypes_the_one_that_the_code_asks_for_is_named() -> None:
    evidence = job(waiting(0), waiting(1, dtype="int32"))
    file = next(iter(evidence.ranks[0].calls[-1].stack)).file
    asks = replace(evidence, sources={**evidence.sources, file: "n = torch.tensor([1], dtype=torch.int32)\n"})

    found = diagnose(asks)[0]

    assert found.code == "RW205"
    assert [place.rank for place in found.culprits] == [1]
