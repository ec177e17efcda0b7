"""Strings that are safe and short enough to show."""

from __future__ import annotations

import pytest

from rankwise.report.safe_text import duration_text, one_line, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcode 漢字", "plain ünïcode 漢字"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("bell\x07 nul\x00", "bell\\x07 nul\\x00"),
        ("line\rover", "line\nover"),
        ("evil\u202etxt", "evil\\u202etxt"),
        ("caf\udce9", "caf\\udce9"),
        ("c1 \x9b31m", "c1 \\x9b31m"),
        ("kept\n\ttoo", "kept\n\ttoo"),
    ],
)
def test_writes_out_what_would_act_or_hide(text: str, shown: str) -> None:
    assert printable(text) == shown
    printable(text).encode("utf-8")


def test_leaves_out_the_middle_of_long_text() -> None:
    shown = printable("a" * 5000 + "end", limit=300)

    assert len(shown) < 310 and shown.startswith("aaa") and shown.endswith("aend") and " … " in shown


def test_one_line_folds_line_breaks() -> None:
    assert one_line(" a\n  b\tc ") == "a b c"


@pytest.mark.parametrize(("seconds", "text"), [(8.42, "8.4 s"), (59.97, "1 min 0 s"), (130, "2 min 10 s"), (11100, "3 h 5 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
