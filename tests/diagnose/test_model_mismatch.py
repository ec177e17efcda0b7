"""Models that differ between ranks: the first parameter that does, and whose model is the odd one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwise.evidence.records import Model, RankEvidence
from tests.diagnose.jobs import (
    TORCH,
    cast,
    echo,
    elsewhere,
    expect,
    job,
    model,
    raised,
    root,
    waiting,
)

MISMATCH = "DDP expects same model across all ranks, but Rank 0 has 3 params, while rank 1 has inconsistent 2 params."
SIZES = "[0]: params[0] in this process with sizes [8, 8] appears not to match sizes of the same param in process 0."


@pytest.mark.parametrize(("world_size", "culprits", "blamed"), [(2, [1], [0, 1]), (4, [3], [3]), (4, [0], [0]), (8, [2, 5], [2, 5])])
def test_rw216_models_of_different_shapes(world_size: int, culprits: list[int], blamed: list[int]) -> None:
    def fall(r: int, size: int) -> RankEvidence:
        evidence = elsewhere(r, models=(model(body__weight=(8, 8), head__weight=(size, 8)),))
        return raised(evidence, "RuntimeError", SIZES, [f"{TORCH}/nn/parallel/distributed.py:850 __init__", "train.py:6 main"])

    found = root(job(*cast(culprits, world_size, lambda r: fall(r, 11), lambda r: fall(r, 10)), exit_code=1))

    expect(found, "RW216", blamed, "models differ", "head.weight", "[10, 8]", "[11, 8]", at="train.py:6")


def test_rw216_models_with_different_numbers_of_parameters() -> None:
    small, large = model(body__weight=(8, 8)), model(body__weight=(8, 8), extra__weight=(2, 8))
    ranks = cast([1], 3, lambda r: elsewhere(r, models=(large,)), lambda r: elsewhere(r, models=(small,)))

    found = root(job(*[raised(e, "RuntimeError", MISMATCH, "train.py:6 main") for e in ranks], exit_code=1))

    expect(found, "RW216", [1], "models differ", "extra.weight")


def test_rw216_while_the_constructor_still_waits() -> None:
    ranks = [waiting(r, "all_gather", "train.py:6 main", origin="ddp", models=(model(w=(8 + (r == 2), 8)),)) for r in range(3)]

    found = root(job(*ranks))

    assert (found.code, [place.rank for place in found.culprits]) == ("RW216", [2])


def test_models_of_damaged_evidence_are_survived() -> None:
    odd = Model(("a", "b"), ((1,),), ("torch.float32", "torch.float32"))
    ranks = [raised(elsewhere(r, models=(replace(odd, dtypes=odd.dtypes[: r + 1]),)), "RuntimeError", MISMATCH) for r in range(2)]

    assert root(job(*ranks, exit_code=1)).code in ("RW216", "RW401")


def test_models_that_differ_do_not_explain_an_error_elsewhere() -> None:
    ranks = [elsewhere(r, models=(model(w=(8 + r,)),)) for r in range(2)]

    assert root(job(raised(ranks[0]), echo(waiting(1)), exit_code=1)).code == "RW401"
