"""A finding as a card: its facts, the source around its places, and what of it is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwise.causes import load_cause
from rankwise.evidence.records import JobEvidence
from rankwise.findings import Finding, Place, Wait
from rankwise.report.page.finding_card import finding_card, snippet
from rankwise.report.page.reported_job import ReportedJob
from rankwise.report.places import where_lines

SOURCE = "".join(f"    line {n}\n" for n in range(1, 31))
REPORTED = ReportedJob(JobEvidence((), 0, 10, 4, 10.0, {}, sources={"/net/train.py": SOURCE}), (), project="/net/")
FOUND = load_cause("RW201").finding(
    "rank 1 never came",
    certain=True,
    culprits=(Place(1, file="/net/train.py", line=15, function="main"),),
    waiting=(Wait(0, "all_reduce", "0", 4, "/net/train.py", 20, "main"),),
    why="`x < y` on one rank",
)


def card(finding: Finding, *, is_root: bool = True) -> str:
    return finding_card(REPORTED, finding, is_root=is_root)


def test_what_where_why_and_next_are_on_it() -> None:
    page = card(FOUND)

    assert "<h1>rank 1 never came</h1>" in page and '<span class="chip error">RW201</span>' in page and ">certain<" in page
    assert "<code>x &lt; y</code> on one rank" in page and "<li><code>rankwise explain RW201</code></li>" in page
    assert "RW201 in general" in page and ">suspected<" in card(replace(FOUND, certain=False))


def test_of_a_note_the_source_is_folded() -> None:
    assert "<summary>source</summary>" not in card(FOUND)
    assert "<summary>source</summary>" in card(FOUND, is_root=False) and "<h3>" in card(FOUND, is_root=False)


def test_facts_that_are_not_there_have_no_label() -> None:
    page = card(Finding("RW999", "unheard", "info", True, "what"))

    assert not any(f"<dt>{label}</dt>" in page for label in ("where", "why", "next")) and "in general" not in page


@pytest.mark.parametrize(("num_places", "left_out"), [(12, ""), (13, "and 1 more places")])
def test_places_beyond_a_dozen_are_counted(num_places: int, left_out: str) -> None:
    places = tuple(Place(n, file="/net/train.py", line=n + 1, function="main") for n in range(num_places))
    page = card(replace(FOUND, culprits=places, waiting=()))

    assert ("more places" in page) == bool(left_out) and left_out in page


def test_sources_are_shown_of_three_culprits_and_the_largest_crowd() -> None:
    culprits = tuple(Place(n, file="/net/train.py", line=n + 1, function="main") for n in range(5))
    waits = (Wait(10, "barrier", file="/net/train.py", line=21), *(Wait(n, "all_reduce", file="/net/train.py", line=22) for n in (11, 12)))
    page = card(replace(FOUND, culprits=culprits, waiting=waits))

    assert page.count("<figure") == 4 and page.count('class="snippet bad"') == 3
    assert "waiting in all_reduce" in page and "waiting in barrier" not in page


@pytest.mark.parametrize(("line", "first", "last"), [(15, 11, 19), (2, 1, 6), (29, 25, 30)])
def test_four_lines_around_a_place_are_shown_without_their_indent(line: int, first: int, last: int) -> None:
    (where,) = where_lines(replace(FOUND, culprits=(Place(1, file="/net/train.py", line=line),), waiting=()))
    shown = snippet(REPORTED, where)

    assert shown.count("<li") == last - first + 1
    assert f'<li class="here"><span>{line}</span><code>line {line}</code></li>' in shown
    assert f"<span>{first}</span>" in shown and f"<span>{last}</span>" in shown


@pytest.mark.parametrize(
    ("file", "line"), [("/net/other.py", 3), ("/net/train.py", 31), ("/net/train.py", 0), ("/net/train.py", None), (None, None)]
)
def test_without_the_line_there_is_no_snippet(file: str | None, line: int | None) -> None:
    (where,) = where_lines(replace(FOUND, culprits=(Place(1, file=file, line=line),), waiting=()))

    assert snippet(REPORTED, where) is None
