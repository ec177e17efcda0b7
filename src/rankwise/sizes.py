"""Bytes, rates and short times as people read them, in a report's cells and in findings."""

from __future__ import annotations


def bytes_text(count: float) -> str:
    """`812 MiB`, `1.4 GiB`."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1023.5:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"


def rate_text(bytes_per_s: float) -> str:
    """Bits per second, as networks are sold: `0.9 Mbit/s`, `9.4 Gbit/s`."""
    bits = bytes_per_s * 8
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= size:
            return f"{bits / size:.3g} {unit}"
    return f"{bits:.0f} bit/s"


def seconds_text(seconds: float) -> str:
    """`0.2 ms`, `200 ms`, `3.1 s`, `59 min 58 s`."""
    if seconds < 0.0995:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 119.5:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60:,} h {minutes % 60} min"
