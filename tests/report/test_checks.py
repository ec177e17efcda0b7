"""The report of `rankwise check` as text: what is said once, what per host, and what is only counted."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise.report.checks import report_text, summary_line


def result(
    title: str = "free memory", group: str = "host", *, odd: list[str] | None = None, why: str = "", **values: str
) -> dict[str, Any]:
    named = {name.replace("_", "-"): text for name, text in values.items()}
    return {"status": "pass", "title": title, "group": group, "values": named, "odd": odd or [], "why": why}


def report(*results: dict[str, Any], hosts: int = 2, **facts: Any) -> dict[str, Any]:
    return {
        "hosts": [{"name": f"node-{n}"} for n in range(hosts)],
        "nodes": {"present": hosts, "expected": hosts},
        "counts": {"pass": len(results)},
        "results": list(results),
        "findings": [],
        "exports": {},
        "outcome": "pass",
        "seconds": 3.0,
        "note": "",
        **facts,
    }


def plain(*results: dict[str, Any], **facts: Any) -> str:
    return report_text(report(*results, **facts), is_table=False, colour=False, width=120)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"counts": {"fail": 2, "pass": 19, "warn": 0}, "outcome": "fail"}, "fail · 2 failed, 19 passed · 2 hosts · 3.0 s"),
        ({"counts": {}}, "pass · nothing was checked · 2 hosts · 3.0 s"),
        ({"nodes": {"present": 1, "expected": 4}, "counts": {"warn": 1}}, "pass · 1 warned · 1 host of 4 · 3.0 s"),
        ({"counts": {"pass": 1}, "note": "cut\nshort"}, "pass · 1 passed · 2 hosts · 3.0 s · cut short"),
    ],
)
def test_one_line_sums_it_up(facts: dict[str, Any], text: str) -> None:
    assert summary_line(report(**facts)) == text


def test_what_all_hosts_have_is_said_once() -> None:
    assert "8 GiB (all 2)" in plain(result(node_0="8 GiB", node_1="8 GiB"))


def test_hosts_that_differ_have_a_line_each_and_the_odd_one_a_star() -> None:
    lines = plain(result(node_1="4 GiB", node_0="8 GiB", odd=["node-1"])).splitlines()

    assert lines[1].endswith("  node-0: 8 GiB") and lines[2].strip() == "* node-1: 4 GiB"


def test_why_it_was_not_possible_stands_after_what_was_measured() -> None:
    assert plain(result(why="no permission")).splitlines()[1].endswith("  no permission")
    assert "not possible: no permission" in plain(result(node_0="8 GiB", why="no permission"))


@pytest.mark.parametrize(("hosts", "shown"), [(12, 12), (13, 6)])
def test_of_many_hosts_the_odd_ones_and_a_few_are_shown(hosts: int, shown: int) -> None:
    text = plain(result(**{f"node_{n}": f"{n} GiB" for n in range(hosts)}, odd=["node-9"]), hosts=hosts)

    assert "* node-9: 9 GiB" in text and text.count(" GiB") == shown
    assert ("and 7 more (--json has them all)" in text) == (hosts == 13)


def test_each_group_has_its_name_once() -> None:
    text = plain(result("a"), result("b"), result("c", "links"))

    assert [line for line in text.splitlines() if line and not line.startswith(" ")][:2] == ["host", "links"]


def test_a_terminal_has_hosts_side_by_side_while_they_fit() -> None:
    one = report(result(node_0="8 GiB", node_1="4 GiB", odd=["node-1"]))

    assert "───" in report_text(one, is_table=True, colour=False, width=120)
    assert "* 4 GiB" in report_text(one, is_table=True, colour=False, width=120)
    assert "───" not in report_text(one, is_table=True, colour=False, width=80), "too narrow"
    assert "───" not in report_text(report(result(), hosts=5), is_table=True, colour=False, width=300), "too many"


def test_links_have_a_table_of_their_own() -> None:
    one = result("latency between hosts", "links", **{"node_0 – node_1": "0.2 ms"})
    text = report_text(report(one), is_table=True, colour=False, width=120)

    assert "see below" in text and "node-0 – node-1" in text and "0.2 ms" in text and "\x1b" not in text


@pytest.mark.parametrize(
    ("exports", "text"),
    [
        ({"node-0": ["export A=1"], "node-1": ["export A=1"]}, "to paste on every host:\n  export A=1"),
        ({"node-0": ["export A=1"], "node-1": []}, "to paste:\n  export A=1"),
        ({"node-0": ["export A=1"], "node-1": ["export A=2"]}, "to paste on node-0:\n  export A=1\nto paste on node-1:\n  export A=2"),
    ],
)
def test_lines_to_paste_are_shown_once_where_they_are_the_same(exports: dict[str, list[str]], text: str) -> None:
    assert text in plain(exports=exports)
    assert "to paste" not in plain(exports={"node-0": []})
