"""The report of `rankwise check`: a table on a terminal, plain lines in a log or where there are many hosts, from the same document."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rankwise.findings import Finding
from rankwise.report.finding_text import finding_text
from rankwise.report.safe_text import duration_text, one_line
from rankwise.report.verdict import findings_of

_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red", "not possible": "dim"}
_MOST_COLUMNS = 4  # hosts side by side; more are listed below each other, in plain lines
_MOST_CELLS = 12  # lines per check, where hosts differ
_MOST_FINDINGS = 12
_CELL = 300


def report_text(report: dict[str, Any], *, is_table: bool, colour: bool, width: int) -> str:
    """The whole report: the checks, what was found, the lines to paste, and one line that sums it up."""
    hosts = [host["name"] for host in report["hosts"]]
    has_room = len(hosts) <= _MOST_COLUMNS and width >= 40 + 24 * len(hosts)
    body = _table(report, hosts, colour, width) if is_table and has_room else "\n".join(_plain_lines(report, hosts))
    findings = findings_of(report)
    parts = [body, *_finding_parts(findings, colour, width), *_paste_parts(report), summary_line(report)]
    return "\n\n".join(part.rstrip("\n") for part in parts if part)


def summary_line(report: dict[str, Any]) -> str:
    """`fail · 2 failed, 1 warned, 19 passed, 2 not possible · 4 hosts · 31.0 s`."""
    counts, nodes = report["counts"], report["nodes"]
    counted = [f"{counts[status]} {word}" for status, word in _COUNT_WORDS if counts.get(status)]
    hosts = f"{nodes['present']} host{'s' * (nodes['present'] != 1)}"
    if nodes["present"] != nodes["expected"]:
        hosts += f" of {nodes['expected']}"
    facts = [report["outcome"], ", ".join(counted) or "nothing was checked", hosts, duration_text(report["seconds"])]
    return " · ".join([*facts, *filter(None, [one_line(report["note"])])])


_COUNT_WORDS = (("fail", "failed"), ("warn", "warned"), ("pass", "passed"), ("not possible", "not possible"))


def _plain_lines(report: dict[str, Any], hosts: list[str]) -> Iterator[str]:
    """One line per check, and one per host where hosts differ; `*` marks the odd ones out."""
    group = ""
    for result in report["results"]:
        if result["group"] != group:
            if group:
                yield ""
            group = result["group"]
            yield group
        head = f"  {result['status']:12}  {result['title']:34}  "
        cells = _cells(result, hosts)
        first, *more = cells or [("", one_line(result["why"], _CELL))]
        for prefix, (name, text) in zip([head, *[" " * len(head)] * len(more)], [first, *more]):
            label = f"{'* ' * (name in result['odd'])}{name}: " if name and len(hosts) > 1 else ""
            yield f"{prefix}{label}{text}".rstrip()


def _cells(result: dict[str, Any], hosts: list[str]) -> list[tuple[str, str]]:
    """What to show of a check: one value where all hosts agree, else one per host or link (of many the odd ones and a few), or why none."""
    values = {name: one_line(text, _CELL) for name, text in result["values"].items()}
    listed = [(name, values[name]) for name in [*hosts, *(name for name in values if name not in hosts)] if name in values]
    if len(listed) > 1 and len({text for _, text in listed}) == 1 and not result["odd"]:
        listed = [("", f"{listed[0][1]} (all {len(listed)})")]
    if len(listed) > _MOST_CELLS:
        odd = [cell for cell in listed if any(name in cell[0].split(" – ") for name in result["odd"])]
        shown = (odd + [cell for cell in listed if cell not in odd])[: max(_MOST_CELLS // 2, min(len(odd), _MOST_CELLS))]
        listed = [*shown, ("", f"and {len(listed) - len(shown)} more (--json has them all)")]
    if result["why"]:
        listed.append(("", f"not possible: {one_line(result['why'], _CELL)}" if listed else one_line(result["why"], _CELL)))
    return listed


def _table(report: dict[str, Any], hosts: list[str], colour: bool, width: int) -> str:
    """A row per check, with the hosts side by side; then a table of what was measured between hosts, with a row per link."""
    table = _new_table("", "check", *hosts)
    group = ""
    for result in report["results"]:
        if group and result["group"] != group:
            table.add_section()
        group = result["group"]
        table.add_row(Text(result["status"], _STYLES.get(result["status"], "")), Text(result["title"]), *_columns(result, hosts))
    return _drawn([table, _link_table(report)], colour, width)


def _link_table(report: dict[str, Any]) -> Table:
    hosts = {host["name"] for host in report["hosts"]}
    measured = [result for result in report["results"] if result["values"] and result["group"] == "links"]
    table = _new_table("link", *(result["title"].removesuffix(" between hosts") for result in measured))
    for pair in dict.fromkeys(name for result in measured for name in result["values"] if name not in hosts):
        cells = [Text(one_line(result["values"].get(pair, ""), _CELL)) for result in measured]
        table.add_row(Text(one_line(pair, 120)), *cells)
    return table


def _new_table(*titles: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(Text(one_line(title, 60)), overflow="fold")
    return table


def _drawn(tables: list[Table], colour: bool, width: int) -> str:
    console = Console(file=io.StringIO(), force_terminal=colour, no_color=not colour, width=max(60, width), _environ={})
    with console.capture() as capture:
        for table in tables:
            if table.row_count:
                console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()).strip("\n")


def _columns(result: dict[str, Any], hosts: list[str]) -> list[Text]:
    style = _STYLES.get(result["status"], "")
    cells = []
    for name in hosts:
        is_odd = name in result["odd"] and len(hosts) > 1
        text = one_line(result["values"].get(name, ""), _CELL)
        cells.append(Text(f"{'* ' * is_odd}{text}", style if is_odd else ""))
    if not any(cell.plain.strip("* ") for cell in cells):
        elsewhere = [f"{name}: {text}" for name, text in result["values"].items()]
        instead = "see below" if result["group"] == "links" and elsewhere else one_line("; ".join(elsewhere) or result["why"], _CELL)
        cells[0] = Text(f"{cells[0].plain}{instead}", "dim")
    return cells


def _finding_parts(findings: list[Finding], colour: bool, width: int) -> Iterator[str]:
    for finding in findings[:_MOST_FINDINGS]:
        yield finding_text(finding, colour=colour, width=width)
    if len(findings) > _MOST_FINDINGS:
        yield f"and {len(findings) - _MOST_FINDINGS} more findings (--json has them all)"


def _paste_parts(report: dict[str, Any]) -> Iterator[str]:
    """The interface variables, once where they are the same everywhere."""
    exports = {name: lines for name, lines in report["exports"].items() if lines}
    if not exports:
        return
    different = {tuple(lines) for lines in exports.values()}
    if len(different) == 1:
        yield "\n".join(["to paste on every host:" if len(exports) > 1 else "to paste:", *(f"  {line}" for line in next(iter(different)))])
    else:
        yield "\n".join(f"to paste on {name}:\n" + "\n".join(f"  {line}" for line in lines) for name, lines in exports.items())
