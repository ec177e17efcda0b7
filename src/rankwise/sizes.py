"""Numbers of bytes as people read them, in a report's cells and in findings."""

from __future__ import annotations


def bytes_text(count: float) -> str:
    """`812 MiB`, `1.4 GiB`."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1023.5:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"
