"""all_to_all with split sizes that do not fit: who is named, and how surely."""

from __future__ import annotations

from dataclasses import replace

from rankwise.diagnose.splits import find_split_disagreement
from rankwise.evidence.records import Call, JobEvidence, RankEvidence
from tests.diagnose.jobs import NOW_NS, SECOND, Slot, job, log_of, rank, root, stack_of

Counts = list[list[int]]  # row i: what rank i sends to each
FAIR: Counts = [[4, 8, 12], [16, 4, 8], [8, 8, 4]]


def column(counts: Counts, i: int) -> list[int]:
    return [row[i] for row in counts]


def rounds(i: int, *of: tuple[Counts, Counts]) -> RankEvidence:
    """Rank `i` of a job in which each round has what the ranks send and what they believe the others send; it stands in the last."""
    slots = [Slot("all_to_all_single", done=n < len(of) - 1) for n in range(len(of))]
    evidence = rank(i, slots)
    log = log_of(slots)
    calls = tuple(
        Call("all_to_all_single", entry.created_ns, entry.created_ns + 1 if entry.done else 0, stack_of("train.py:10 train"),
             sent=tuple(sent[i]), expected=tuple(column(believed, i)))
        for entry, (sent, believed) in zip(log, of, strict=True)
    )  # fmt: skip
    return replace(evidence, calls=calls, collectives=log, last_progress_ns=NOW_NS - 10 * SECOND)


def job_of(*of: list[tuple[Counts, Counts]]) -> JobEvidence:
    return job(*(rounds(i, *(mine)) for i, mine in enumerate(of)))


def changed(counts: Counts, *at: tuple[int, int], by: int = 4) -> Counts:
    return [[number + by * ((i, j) in at) for j, number in enumerate(row)] for i, row in enumerate(counts)]


def test_splits_that_fit_are_nobodys_fault() -> None:
    fair = [(FAIR, FAIR)] * 3

    assert find_split_disagreement(job_of(fair, fair, fair), {}) is None


def test_a_rank_that_fits_none_of_its_peers_is_the_one() -> None:
    fair = [(FAIR, FAIR)] * 3
    odd = [*fair[:2], (changed(FAIR, (1, 0), (1, 2)), FAIR)]

    found = root(job_of(fair, odd, fair))

    assert (found.code, found.certain, found.deadlock) == ("RW204", True, True)
    assert [place.rank for place in found.culprits] == [1]
    assert "rank 1 sends 20 numbers to rank 0, which expects 16" in found.summary


def test_a_rank_that_does_not_agree_with_itself_is_the_one_whatever_its_peers_say() -> None:
    fair = [(FAIR, FAIR)]
    odd = [(changed(FAIR, (2, 2), (2, 0)), FAIR)]

    found = root(job_of(fair, fair, odd))

    assert [place.rank for place in found.culprits] == [2] and found.certain


def test_several_rounds_that_do_not_fit_tell_more_than_the_first() -> None:
    first, second = changed(FAIR, (2, 1)), changed(FAIR, (2, 0))
    fair = [(FAIR, FAIR)] * 2
    odd = [(first, FAIR), (second, FAIR)]

    found = root(job_of(fair, fair, odd))

    assert [place.rank for place in found.culprits] == [2] and found.certain


def test_one_pair_that_does_not_fit_names_both_and_proves_nothing() -> None:
    before = [(FAIR, FAIR)] * 3
    odd = [*before, (FAIR, changed(FAIR, (0, 1)))]
    fair = [*before, (FAIR, FAIR)]

    found = root(job_of(fair, odd, fair))

    assert found.code == "RW204" and not found.certain
    assert sorted(place.rank for place in found.culprits) == [0, 1]
    assert "rank 0 sends 8 numbers to rank 1, which expects 12" in found.summary


def test_calls_that_torch_numbered_differently_are_not_compared() -> None:
    """A rank that is one round ahead sends other numbers there: that is no disagreement."""
    other = changed(FAIR, (0, 1), (1, 2), by=8)
    ahead, behind = [(FAIR, FAIR), (other, other)], [(FAIR, FAIR)]

    assert find_split_disagreement(job_of(ahead, behind, behind), {}) is None
