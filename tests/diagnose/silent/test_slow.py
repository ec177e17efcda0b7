"""Notes on time: how much of a step has to pass in data or collectives, and how small buckets have to be, for a word."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwise.diagnose.silent.slow import find_own_collectives, find_small_buckets, find_wait_for_data
from rankwise.evidence.audit import Audit, PassBegun, PassEnded, Reduced, Times
from tests.diagnose.silent.audits import DDP, audited, lines

MIB = 1 << 20


@pytest.mark.parametrize(
    ("cap", "size", "is_found"),
    [(MIB // 2, 9 * MIB, True), (MIB // 2, 8 * MIB, False), (MIB, 90 * MIB, False), (0, 90 * MIB, False)],
    ids=["18 buckets", "16 buckets", "1 MiB each", "unknown"],
)
def test_small_buckets_are_noted_by_their_number(cap: int, size: int, is_found: bool) -> None:
    found = find_small_buckets(audited(Audit(wrappers=(replace(DDP, cap=cap, bytes=size, reduced=200),)), Audit()))

    assert (found is not None) == is_found
    if found is not None:
        assert (found.code, found.severity, found.certain) == ("RW514", "info", True)
        assert "up to 18 all-reduces a step" in found.summary and lines(found) == {0: DDP.site}


def test_there_are_no_more_buckets_than_tensors() -> None:
    found = find_small_buckets(audited(Audit(wrappers=(replace(DDP, cap=MIB // 2, bytes=9 * MIB, reduced=12),))))

    assert "up to 12 all-reduces a step" in found.summary


def spent(*, data: float = 0.0, collective: float = 0.0, wall: float = 100.0, steps: int = 10, **facts: object) -> Audit:
    """A rank by milliseconds of each step."""
    times = Times(steps, steps * wall, 0.0, steps * data, 0.0, 0.0, 0.0, steps * collective, 0.0)
    passes = (PassBegun(1, 0, 20, 5, "RandomSampler", True, None, False, False, 64, False, 3, 0),)
    return Audit(times=(times,), passes=passes, pass_ends=(PassEnded(1, 0, True, 8, 32, 0, 8, 0),), **facts)


def test_ranks_that_all_wait_for_data_are_told_by_how_much() -> None:
    found = find_wait_for_data(audited(spent(data=40), spent(data=30)))

    assert (found.code, found.severity, found.certain) == ("RW512", "info", True)
    assert "40 % of the time: 40 ms of each 100 ms step" in found.summary and "about 60 ms" in found.why
    assert "num_workers is 3" in found.why and "num_workers=6" in found.next[0] and lines(found) == {0: 5, 1: 5}


@pytest.mark.parametrize(
    "ranks",
    [
        (spent(data=40), spent(data=29)),
        (spent(data=4.9, wall=10), spent(data=4.9, wall=10)),
        (spent(data=40, steps=9), spent(data=40)),
        (spent(data=40), Audit()),
    ],
    ids=["one waits less", "under 5 ms", "9 steps", "unknown on one"],
)
def test_what_is_no_waiting_for_data(ranks: tuple[Audit, ...]) -> None:
    assert find_wait_for_data(audited(*ranks)) is None


METRIC = Reduced("all_reduce", "0", 0, "", (), (1.0,), 1, 14)


def test_the_scripts_own_collectives_are_told_by_the_rank_that_waits_least() -> None:
    found = find_own_collectives(audited(spent(collective=50, reduces=(METRIC,)), spent(collective=30, reduces=(METRIC, METRIC))))

    assert (found.code, found.severity, found.certain) == ("RW513", "info", True)
    assert "30 % of the time" in found.summary and "2 such calls were looked at on rank 1" in found.why
    assert lines(found) == {0: 14, 1: 14}


@pytest.mark.parametrize(
    "audit",
    [spent(collective=29), spent(collective=4.9, wall=10), spent(collective=50, reduces=(replace(METRIC, label="gradient of weight"),))],
    ids=["under 30 %", "under 5 ms", "gradients by hand"],
)
def test_collectives_that_need_no_word(audit: Audit) -> None:
    assert find_own_collectives(audited(audit, audit)) is None
