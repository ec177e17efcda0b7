"""The same random numbers on all ranks: what is compared where workers are made anew in every epoch."""

from __future__ import annotations

from dataclasses import replace

from rankwise.diagnose.silent.audited_job import AuditedJob
from rankwise.diagnose.silent.augmentation import find
from rankwise.evidence.audit import Audit, Drawn, PassBegun, PassEnded, RandomUsed
from tests.diagnose.jobs import job, rank, stack_of

LOADER = PassBegun(1, 0, 1, 1, "RandomSampler", True, None, False, False, 64, False, 2, 0)


def audited(number: int, *epochs: int) -> Audit:
    """A rank whose workers draw from these states, one state an epoch; each epoch's workers count their looks from 0."""
    looks = tuple(RandomUsed(n, ("torch",), (state + n,), worker=0) for state in epochs for n in range(4))
    drawn = tuple(Drawn(1, 0, n, 100 * number + n, (number, n), 4) for n in range(4))
    ended = PassEnded(1, 0, True, 4, 16, 0, 4, 0)
    return Audit(sites={1: stack_of("train.py:9 main")}, passes=(LOADER,), drawn=drawn, pass_ends=(ended,), randoms=looks)


def seen(*audits: Audit) -> str:
    found = find(AuditedJob(job(*[replace(rank(r, []), audit=audit) for r, audit in enumerate(audits)])))
    return found.code if found is not None else ""


def test_ranks_that_draw_the_same_random_numbers_are_found() -> None:
    assert seen(audited(0, 1000), audited(1, 1000)) == "RW754"
    assert seen(audited(0, 1000), audited(1, 2000)) == ""


def test_a_rank_whose_next_epoch_has_begun_is_compared_with_its_own_past() -> None:
    assert seen(audited(0, 1000, 5000), audited(1, 1000)) == "RW754"
    assert seen(audited(0, 1000, 5000), audited(1, 1000, 6000)) == ""
