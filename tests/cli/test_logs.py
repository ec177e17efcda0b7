"""A log that nobody reads holds nobody up."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from rankwise.cli.logs import LogOutput

LINES = 3000  # more than a pipe holds


@pytest.fixture
def pipe() -> Iterator[tuple[int, logging.Logger]]:
    """Where the log comes out, and the log."""
    out, into = os.pipe()
    log, handler = logging.Logger("made.for.this.test"), LogOutput(into)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    log.addHandler(handler)
    yield out, log
    os.close(into)
    os.close(out)


def test_lines_come_out_as_they_are(pipe: tuple[int, logging.Logger]) -> None:
    out, log = pipe
    log.info("one \udc80 and %s", "another")
    log.warning("x" * 9000)

    assert os.read(out, 1 << 20).decode().splitlines() == ["INFO one \\udc80 and another", "WARNING " + "x" * 9000]


@pytest.mark.timeout(60)
def test_nobody_waits_for_a_reader_and_what_was_left_out_is_told(pipe: tuple[int, logging.Logger]) -> None:
    out, log = pipe
    for number in range(LINES):
        log.info("%040d", number)
    kept = os.read(out, 1 << 20).decode().splitlines()
    log.info("the next")

    assert 0 < len(kept) < LINES and kept == [f"INFO {number:040d}" for number in range(len(kept))]
    assert os.read(out, 1 << 20).decode().splitlines() == [
        f"WARNING {LINES - len(kept)} lines are not in this log: it was not read fast enough",
        "INFO the next",
    ]
