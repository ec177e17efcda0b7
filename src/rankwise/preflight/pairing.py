"""Which hosts measure with each other: rounds of pairs, and a second look at the suspects."""

from __future__ import annotations

from collections.abc import Iterable

from rankwise.meet.links import Pair

_ALL_PAIRS_UP_TO = 8  # hosts; beyond that two rounds and a third for the suspects take the place of all pairs


def rounds_for(names: list[str]) -> list[list[Pair]]:
    """Rounds of pairs that do not share a host, so that they can be measured at once. Every pair for few hosts, two rounds for many."""
    rounds = _tournament(names)
    return rounds if len(names) <= _ALL_PAIRS_UP_TO else rounds[:2]


def second_look(names: list[str], good: Iterable[Pair], bad: Iterable[Pair]) -> list[list[Pair]]:
    """Each suspect with a host that is beyond suspicion, where they have not met: this is what tells a node from a link."""
    good, bad = list(good), list(bad)
    suspects = [name for name in names if any(name in pair for pair in bad)]
    met = {frozenset(pair) for pair in [*good, *bad]}
    trusted = [name for name in names if name not in suspects and any(name in pair for pair in good)]
    found: list[list[Pair]] = []
    for suspect in suspects:
        partner = next((name for name in trusted if frozenset((suspect, name)) not in met), None)
        if partner is None:
            continue
        pair = (partner, suspect)
        free = next((some for some in found if not any(set(other) & set(pair) for other in some)), None)
        if free is None:
            found.append([pair])
        else:
            free.append(pair)
    return found


def _tournament(names: list[str]) -> list[list[Pair]]:
    """Everybody with everybody, by the circle method: one stays, the others move on by one seat."""
    seats: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]))
        rounds.append([(a, b) for a, b in pairs if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds
