"""Strings that are safe to show: evidence may hold control characters, terminal escapes, text-direction tricks or megabytes."""

from __future__ import annotations

import re

# C0/C1 controls except tab and newline, bidi overrides and isolates, zero-width and line separators, lone surrogates.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def printable(text: object, limit: int = 2000) -> str:
    """The text with invisible characters written as escapes, and without its middle where it is longer than `limit`."""
    whole = str(text)
    if len(whole) > limit:
        whole = f"{whole[: limit * 2 // 3]} … {whole[-limit // 3 :]}"
    return _UNSAFE.sub(_escape, whole)


def one_line(text: object, limit: int = 2000) -> str:
    return " ".join(printable(text, limit).split())


def duration_text(seconds: float) -> str:
    """`8.4 s`, `2 min 10 s`, `3 h 5 min`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min"


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return "\n" if code == 0x0D else f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
