"""Backwards of one window are told apart by the user's lines, however deep the library is that makes them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from rankwise.probe import sites
from rankwise.probe.audit import window

LIBRARY = """
def precision(note): note(sys._getframe())
def strategy(note): precision(note)
def fabric(note): strategy(note)
"""
SCRIPT = """
def gan(note):
    fabric(note)
    fabric(note)

def accumulate(note):
    for _ in range(4):
        fabric(note)
"""


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    window.close()
    yield
    window.close()
    sites.forget()


@pytest.mark.parametrize(("story", "lines"), [("gan", 2), ("accumulate", 1)])
def test_a_librarys_backward_called_from_two_lines_is_made_in_two_places(story: str, lines: int) -> None:
    names: dict[str, object] = {"sys": sys}
    exec(compile(LIBRARY, "/venv/lib/python3.11/site-packages/fabric/fabric.py", "exec"), names)
    exec(compile(SCRIPT, "/home/ada/train.py", "exec"), names)

    names[story](window.backward)  # type: ignore[operator]

    assert window.close()[1] == lines
