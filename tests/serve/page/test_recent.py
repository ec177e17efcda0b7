"""What went wrong lately: the same thing once, never more than can be read."""

from __future__ import annotations

import logging

from rankwise.serve.page.recent import Findings


def test_the_same_finding_is_counted_and_the_newest_stands_first() -> None:
    findings = Findings()
    findings.note("RW803 a task was not done within 1.5 s", "a")
    findings.note("RW801 17 tasks wait", "b")
    findings.note("RW803 a task was not done within 0.3 s\nand more", "a")

    first, second = findings.latest()
    assert (first["code"], first["text"], first["times"], first["model"]) == ("RW803", "a task was not done within 0.3 s", 2, "a")
    assert (second["code"], second["times"]) == ("RW801", 1)


def test_there_are_never_too_many_nor_too_long() -> None:
    findings = Findings()
    for letter in range(26 * 26):
        findings.note("x" * letter)
    assert len(findings.latest()) == 50 and max(len(finding["text"]) for finding in findings.latest()) <= 300


def test_the_log_of_the_pool_tells_too() -> None:
    findings, log = Findings(), logging.getLogger("tests.findings")
    log.addHandler(findings)
    try:
        log.info("nothing")
        log.warning("worker %d %s; it is replaced", 1, "was killed")
    finally:
        log.removeHandler(findings)
    assert [finding["text"] for finding in findings.latest()] == ["worker 1 was killed; it is replaced"]
