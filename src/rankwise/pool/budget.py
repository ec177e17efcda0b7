"""Which models have to leave a device so that another one fits: least recently used first, never one in use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Resident:
    """A model on a worker of the device."""

    worker: int
    model: int
    nbytes: int
    last_used: float
    in_use: bool


def evictions(residents: list[Resident], need: int, limit: int | None) -> list[Resident] | None:
    """What has to go for `need` more bytes; None where even that would not be enough right now."""
    if limit is None:
        return []
    over = sum(resident.nbytes for resident in residents) + need - limit
    chosen: list[Resident] = []
    for resident in sorted((r for r in residents if not r.in_use), key=lambda r: r.last_used):
        if over <= 0:
            break
        if resident.nbytes:
            chosen.append(resident)
            over -= resident.nbytes
    return chosen if over <= 0 else None


def can_ever_fit(need: int, limit: int | None) -> bool:
    return limit is None or need <= limit
