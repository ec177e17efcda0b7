"""One row for several: a prompt keeps it, and the status line steps aside and comes back."""

from __future__ import annotations

import io
import sys

import pytest

from rankwise.launch.faults import Faults
from rankwise.launch.terminal import Terminal


class Stream:
    """A standard stream, on a terminal or not; both streams of a terminal show in one place."""

    def __init__(self, shown: io.BytesIO, is_terminal: bool) -> None:
        self.buffer, self._is_terminal = shown, is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> None:
        self.buffer.write(text.encode())

    def flush(self) -> None:
        pass


def terminal_of(monkeypatch: pytest.MonkeyPatch, is_terminal: bool = True) -> tuple[Terminal, io.BytesIO]:
    shown = io.BytesIO()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Stream(shown, is_terminal))
    return Terminal(Faults()), shown


def test_the_status_line_goes_before_a_line_and_comes_back_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, shown = terminal_of(monkeypatch)

    terminal.status("step 3")
    terminal.write(False, b"loss 0.5\n")
    terminal.status("step 3")

    assert shown.getvalue() == b"\r\033[Kstep 3" + b"\r\033[K" + b"loss 0.5\n" + b"\r\033[Kstep 3"
    terminal.status("")
    assert shown.getvalue().endswith(b"step 3\r\033[K")


def test_an_unfinished_line_keeps_the_row_until_its_owner_or_a_line_end_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, shown = terminal_of(monkeypatch)

    terminal.write(False, b"name? ", owner="rank 0")
    terminal.status("step 3")
    assert shown.getvalue() == b"name? " and terminal.owns_row("rank 0")
    terminal.write(False, b"Ada", owner="rank 0")
    terminal.write(True, b"warning\n", owner="rank 1")

    assert shown.getvalue() == b"name? Ada\nwarning\n" + b"\r\033[Kstep 3"
    assert not terminal.owns_row("rank 0")


def test_a_progress_bar_is_not_drawn_over(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, shown = terminal_of(monkeypatch)

    terminal.write(True, b"  3%\r")
    terminal.status("step 3")

    assert shown.getvalue() == b"  3%\r"


def test_a_status_is_no_longer_than_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, shown = terminal_of(monkeypatch)
    monkeypatch.setenv("COLUMNS", "10")

    terminal.status("0123456789abcdef")

    assert shown.getvalue() == b"\r\033[K012345678"


def test_what_is_no_terminal_gets_lines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, shown = terminal_of(monkeypatch, is_terminal=False)

    terminal.status("step 3")
    terminal.write(False, b"half a ")
    terminal.write(True, b"line\n", owner="rank 1")

    assert shown.getvalue() == b"half a line\n" and not terminal.shows_status and not terminal.is_live(True)


def test_a_terminal_that_went_away_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, shown = terminal_of(monkeypatch)
    shown.close()

    terminal.status("step 3")
    terminal.write(False, b"a line\n")
