"""Bytes, rates and times in a report's cells."""

from __future__ import annotations

import pytest

from rankwise.sizes import bytes_text, rate_text, seconds_text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (4096, "4 KiB"),
        (1 << 20, "1 MiB"),
        (500 << 20, "500 MiB"),
        (812 << 20, "812 MiB"),
        (1_503_238_554, "1.4 GiB"),
        (3 << 30, "3.0 GiB"),
        (5 << 40, "5,120.0 GiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("bytes_per_s", "text"),
    [(0, "0 bit/s"), (124, "992 bit/s"), (125, "1 kbit/s"), (112_500, "900 kbit/s"), (125_000, "1 Mbit/s"), (1.175e9, "9.4 Gbit/s")],
)
def test_rates_are_in_bits(bytes_per_s: float, text: str) -> None:
    assert rate_text(bytes_per_s) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0002, "0.2 ms"),
        (0.0994, "99.4 ms"),
        (0.2, "200 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (119.4, "119.4 s"),
        (119.5, "2 min 0 s"),
        (3598, "59 min 58 s"),
        (7199.9, "2 h 0 min"),
    ],
)
def test_short_times(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
