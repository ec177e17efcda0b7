"""Compares what was measured in pairs: with and without the watch, a moment apart, so that both saw the same machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One line of the table; `is_met` is None where nothing is required."""

    what: str
    plain: str
    watched: str
    difference: str
    required: str = ""
    is_met: bool | None = None


def in_turns(num_pairs: int, plain: Callable[[], T], watched: Callable[[], T]) -> list[tuple[T, T]]:
    """Pairs of results, in changing order, after one of each that does not count."""
    plain(), watched()
    pairs = []
    for i in range(num_pairs):
        if i % 2:
            a, b = plain(), watched()
        else:
            b, a = watched(), plain()
        pairs.append((a, b))
    return pairs


@dataclass(frozen=True)
class Comparison:
    """The same thing measured in pairs."""

    plain: list[float]
    watched: list[float]

    @property
    def ratios(self) -> list[float]:
        return [b / a for a, b in zip(self.plain, self.watched)]

    @property
    def differences(self) -> list[float]:
        return [b - a for a, b in zip(self.plain, self.watched)]

    def ratio_text(self) -> str:
        low, _, high = quantiles(self.ratios, n=4)
        return f"{percent(median(self.ratios))} ± {doubt(self.ratios):.1%} [{percent(low)} … {percent(high)}]"

    def row(self, what: str, unit: str, scale: float, limit: float | None) -> Row:
        low, _, high = (value * scale for value in quantiles(self.differences, n=4))
        seen, off = median(self.differences) * scale, doubt(self.differences) * scale
        return Row(
            what,
            f"{median(self.plain) * scale:.2f} {unit}",
            f"{median(self.watched) * scale:.2f} {unit}",
            f"{seen:+.2f} ± {off:.2f} {unit} [{low:+.2f} … {high:+.2f}]",
            f"≤ {limit * scale:g} {unit}" if limit is not None else "",
            seen <= limit * scale if limit is not None else None,
        )


def percent(ratio: float) -> str:
    return f"{ratio - 1:+.1%}"


def doubt(values: list[float]) -> float:
    """Half the width of the 95 % interval of the median, from the order of the values alone."""
    ordered, count = sorted(values), len(values)
    reach = 0.98 * count**0.5
    low, high = ordered[max(0, int(count / 2 - reach))], ordered[min(count - 1, int(count / 2 + reach))]
    return (high - low) / 2
