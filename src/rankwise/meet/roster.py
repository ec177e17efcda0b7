"""Which ranks or nodes are missing, which numbers were given twice, and the status line while waiting."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from rankwise.findings import ranks_text

Claimant = TypeVar("Claimant")


def missing_numbers(present: Collection[int | None], expected: int) -> list[int]:
    """The ranks from 0 on that are not present."""
    return [number for number in range(expected) if number not in present]


def claimed_twice(claims: Iterable[tuple[int | None, Claimant]]) -> dict[int, list[Claimant]]:
    """The numbers with more than one claimant, lowest first; claimants without a number are left out."""
    claimants: dict[int, list[Claimant]] = {}
    for number, claimant in claims:
        if number is not None:
            claimants.setdefault(number, []).append(claimant)
    return {number: several for number, several in sorted(claimants.items()) if len(several) > 1}


def with_host(ranks: list[int], hosts: Mapping[int, str | None]) -> str:
    """`ranks 2, 3 on node-b` where all of them are on one known host, else `ranks 2, 3`."""
    named = {hosts.get(rank) for rank in ranks}
    return f"{ranks_text(ranks)} on {named.pop()}" if len(named) == 1 and None not in named else ranks_text(ranks)


def waiting_text(missing: list[int], hosts: Mapping[int, str | None], world_size: int, waited_s: float, then: str = "") -> str:
    """`3 of 4 ranks registered, waiting for rank 2 on node-b, 14 s`; `then` says what comes next where no rank is missing."""
    awaited = f"waiting for {with_host(missing, hosts)}" if missing else f"not yet: {then}"
    return f"{world_size - len(missing)} of {world_size} ranks registered, {awaited}, {waited_s:.0f} s"
