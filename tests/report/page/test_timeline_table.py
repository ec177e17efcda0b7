"""The timeline drawn: letters, marks and one sentence for each set of ranks where they part."""

from __future__ import annotations

import re

import pytest

from rankwise.evidence.collective_log import CollectiveLog
from rankwise.evidence.records import Call, JobEvidence, RankEvidence
from rankwise.report.page.reported_job import ReportedJob, reported_job
from rankwise.report.page.timeline_table import timeline_section
from tests.diagnose.jobs import did, log_of, stack_of


def drawn(*logs: CollectiveLog) -> str:
    ranks = {rank: RankEvidence(rank, collectives=log) for rank, log in enumerate(logs)}
    return timeline_section(reported_job(JobEvidence((), 0, 10, len(logs), 10.0, ranks), []))


def words(page: str) -> str:
    return re.sub(r"<[^>]+>", "", page)


def test_ranks_that_agree_need_one_row_and_one_sentence() -> None:
    page = drawn(log_of(did(times=3)), log_of(did(times=3)))

    assert "All ranks agree up to #3." in page and page.count('scope="row"') == 1
    assert "▼" not in page and "never called</span>" not in page and "pending</span>" not in page


def test_where_ranks_part_each_side_has_a_sentence_with_its_line() -> None:
    waiting = log_of([*did(times=2), *did(at="train.py:20 train", done=False)])
    page = drawn(waiting, waiting, log_of(did(times=2)))

    assert "Ranks part at #3:" in words(page) and page.count("▼") == 1
    assert "called all_reduce" in words(page) and "/train.py:20 train(), still pending" in words(page)
    assert "rank 2 never got there; the last was #2 all_reduce" in words(page)
    assert "never called" in page and "pending" in page


def test_a_rank_that_called_nothing_is_told_as_such() -> None:
    assert "rank 1 called none" in words(drawn(log_of(did(times=1, done=False)), CollectiveLog()))


def test_without_any_record_that_is_said() -> None:
    assert "No collective was seen." in drawn(CollectiveLog())


@pytest.mark.parametrize(
    ("op", "letter"),
    [
        ("all_reduce", "A"),
        ("all_gather_into_tensor", "G"),
        ("nccl:_allgather_base", "G"),
        ("ALLREDUCE", "A"),
        ("reduce_scatter_tensor", "S"),
        ("unheard", "?"),
    ],
)
def test_operations_have_letters_whatever_torch_calls_them(op: str, letter: str) -> None:
    assert f">{letter}</td>" in drawn(log_of(did(op)))


def calling(number: int, *calls: Call) -> RankEvidence:
    return RankEvidence(number, calls=calls)


def section(*ranks: RankEvidence, culprits: frozenset[int] = frozenset()) -> str:
    return timeline_section(ReportedJob(JobEvidence((), 0, 10, 2, 10.0, {e.rank: e for e in ranks}), (), culprits))


def test_calls_are_drawn_where_there_is_no_record_and_the_culprits_row_comes_first() -> None:
    sent, open_recv = Call("send", 1, 2, stack_of("a.py:1 f"), peer=1), Call("recv", 3, 0, peer=1)
    page = section(calling(0, sent), calling(1, sent, open_recv), culprits=frozenset({1}))

    assert re.findall(r'<tr( class="culprit")?><th scope="row"><span>(\d)', page) == [(' class="culprit"', "1"), ("", "0")]
    assert page.count(">→</td>") == 2 and page.count(">←</td>") == 1
    assert "recv" in page and "pending" in page


def test_beside_collectives_only_sends_and_receives_are_drawn() -> None:
    one = RankEvidence(0, collectives=log_of(did()), calls=(Call("backward", 1, 2), Call("send", 3, 4, peer=1)))

    assert ">→</td>" in section(one) and ">∇</td>" not in section(one)
