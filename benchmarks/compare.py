"""Compares what is measured in pairs: with and without the watch, a moment apart, while nobody else uses the machine."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Generic, TypeVar

T = TypeVar("T")
MIN_PAIRS = 7
CALM_CORES = 0.15  # others may use this much of one core while a pair is measured


@dataclass(frozen=True)
class Row:
    """One line of the table; `is_met` is None where nothing is required, or where the machine was too busy to tell."""

    what: str
    plain: str
    watched: str
    difference: str
    pairs: str = ""
    required: str = ""
    is_met: bool | None = None


@dataclass(frozen=True)
class Pairs(Generic[T]):
    """The pairs that count: the calm ones, or all where hardly any were calm."""

    results: list[tuple[T, T]]
    is_calm: bool

    def __str__(self) -> str:
        return f"{len(self.results)}" if self.is_calm else f"{len(self.results)}, busy machine"


def in_turns(plain: Callable[[], T], watched: Callable[[], T], num_pairs: int, deadline: float) -> Pairs[T]:
    """Measure until enough pairs were left alone by other programs; after the deadline all count, calm or not."""
    neighbours = Neighbours()
    calm: list[tuple[T, T]] = []
    busy: list[tuple[T, T]] = []
    plain(), watched()
    while len(calm) < num_pairs and (time.monotonic() < deadline or len(calm) + len(busy) < num_pairs):
        neighbours.wait_for_calm(deadline)
        neighbours.mark()
        if (len(calm) + len(busy)) % 2:
            a, b = plain(), watched()
        else:
            b, a = watched(), plain()
        (calm if neighbours.cores_since_mark() < CALM_CORES else busy).append((a, b))
    return Pairs(calm, is_calm=True) if len(calm) >= MIN_PAIRS else Pairs(calm + busy, is_calm=False)


class Neighbours:
    """How much of the machine other programs use."""

    def __init__(self) -> None:
        self.mark()

    def mark(self) -> None:
        self._clock, self._busy_s, self._own_s = time.monotonic(), busy_s(), children_cpu_s()

    def cores_since_mark(self) -> float:
        elapsed = time.monotonic() - self._clock
        return (busy_s() - self._busy_s - (children_cpu_s() - self._own_s)) / elapsed

    def wait_for_calm(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            self.mark()
            time.sleep(0.3)
            if self.cores_since_mark() < CALM_CORES:
                return


def busy_s() -> float:
    """CPU seconds that all cores together spent at work, or lost to other virtual machines, since boot."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


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

    def is_ratio_within(self, limit: float) -> bool | None:
        """None if the pairs differ so much from each other that the median itself may lie on either side of the limit."""
        ratio, unsure = median(self.ratios), doubt(self.ratios)
        return None if abs(ratio - limit) < unsure and unsure > 0.01 else ratio <= limit

    def difference_text(self, unit: str, scale: float) -> str:
        low, _, high = (value * scale for value in quantiles(self.differences, n=4))
        return f"{median(self.differences) * scale:+.2f} ± {doubt(self.differences) * scale:.2f} {unit} [{low:+.2f} … {high:+.2f}]"


def percent(ratio: float) -> str:
    return f"{ratio - 1:+.1%}"


def doubt(values: list[float]) -> float:
    """Half the width of the 95 % interval of the median, from the order of the values alone."""
    ordered, count = sorted(values), len(values)
    reach = 0.98 * count**0.5
    low, high = ordered[max(0, int(count / 2 - reach))], ordered[min(count - 1, int(count / 2 + reach))]
    return (high - low) / 2


def children_cpu_s() -> float:
    """CPU time of this process and of all that ended below it."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
