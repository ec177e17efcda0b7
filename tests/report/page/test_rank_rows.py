"""The table of ranks: a row each in a small job, a row for each situation in a large one, culprits first."""

from __future__ import annotations

import re

import pytest

from rankwise.evidence.records import Frame, JobEvidence
from rankwise.report.page.rank_rows import rank_section
from rankwise.report.page.rank_text import RankRow
from rankwise.report.page.reported_job import ReportedJob

REPORTED = ReportedJob(JobEvidence((), 0, 10, 4, 10.0, {}), (), project="/net/")


def rows(*states: RankRow) -> list[list[str]]:
    """The text of each cell."""
    body = re.search(r"<tbody>(.*?)</tbody>", rank_section(REPORTED, list(states)), re.DOTALL)
    assert body is not None
    cells = (re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in re.findall(r"<tr.*?</tr>", body[1], re.DOTALL))
    return [[re.sub(r"<[^>]+>", "|", cell).strip("| ") for cell in row] for row in cells]


def test_a_row_tells_where_a_rank_is_since_when_and_in_what() -> None:
    one = RankRow(3, "waiting", "wait", Frame("/net/train.py", 9, "main"), 2.0, "all_reduce #4", True, 42, "node-a", 1 << 20, True)

    [row] = rows(one)

    assert row == ["3||culprit", "waiting", "train.py:9| |main()", "2.0 s", "all_reduce #4| |pending", "pid 42 on node-a", "1 MiB"]


def test_what_is_not_known_is_said_and_not_made_up() -> None:
    assert rows(RankRow(0, "never seen", "unseen")) == [["0", "never seen", "not seen", "–", "none seen", "–", "–"]]
    assert "main" not in rows(RankRow(0, "busy", "busy", Frame("/net/train.py", 9, "<module>")))[0][2]


@pytest.mark.parametrize(("num_ranks", "num_rows"), [(16, 16), (17, 1)])
def test_equal_ranks_share_a_row_in_a_large_job_only(num_ranks: int, num_rows: int) -> None:
    found = rows(*[RankRow(r, "waiting", "wait", since_s=float(r), pid=r, host=f"node-{r % 2}") for r in range(num_ranks)])

    assert len(found) == num_rows
    if num_rows == 1:
        assert found[0][0] == "0-16||17 ranks, same" and found[0][3] == "0.0 s – 16.0 s" and found[0][5] == "17 processes on 2 hosts"


def test_culprits_come_first_then_what_is_rare() -> None:
    crowd = [RankRow(r, "waiting", "wait") for r in range(18)]
    found = rows(*crowd, RankRow(18, "busy", "busy"), RankRow(19, "busy", "busy"), RankRow(20, "ended", "ended", is_culprit=True))

    assert [row[0].split("|")[0] for row in found] == ["20", "18, 19" if "," in found[1][0] else "18-19", "0-17"]


def test_situations_beyond_the_table_are_counted() -> None:
    page = rank_section(REPORTED, [RankRow(r, f"state {r}", "busy") for r in range(60)])

    assert page.count("<tr") == 1 + 48 and "and 12 more ranks in 12 other situations: ranks 48-59" in page


@pytest.mark.parametrize(("num_ranks", "numbered"), [(16, None), (256, True), (257, False)])
def test_a_large_job_has_a_map_and_its_squares_numbers_while_they_fit(num_ranks: int, numbered: bool | None) -> None:
    page = rank_section(REPORTED, [RankRow(r, "waiting", "wait", is_culprit=r == 5) for r in range(num_ranks)])

    assert ('class="map' in page) == (numbered is not None)
    assert ('<i class="wait">7</i>' in page) == bool(numbered) and ('class="wait culprit"' in page) == (numbered is not None)
