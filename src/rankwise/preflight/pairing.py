"""Who measures with whom, and what bad pairs say: a bad node spoils all its pairs, a bad link only one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rankwise.preflight.odd import hosts_text

Pair = tuple[str, str]
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


@dataclass(frozen=True)
class Blame:
    """Nodes all of whose pairs are bad, and the single bad pairs that no such node explains."""

    nodes: tuple[str, ...] = ()
    links: tuple[Pair, ...] = ()
    is_everywhere: bool = False
    has_good: bool = False  # there are good pairs to compare with

    def hosts(self) -> list[str]:
        return list(dict.fromkeys([*self.nodes, *(name for link in self.links for name in link)]))

    def text(self) -> str:
        """`every link of node-c`, `the link node-a – node-b`, `all links`."""
        if self.is_everywhere:
            return "all links"
        nodes = f"every link of {hosts_text(list(self.nodes))}" if self.nodes else ""
        links = hosts_text([f"{a} – {b}" for a, b in self.links]) if self.links else ""
        return " and ".join(filter(None, [nodes, f"the link{'s' * (len(self.links) > 1)} {links}" if links else ""]))

    def why(self) -> str:
        if self.is_everywhere:
            return "no host stands out: what all of them share (the switch, the network) is to blame"
        if self.nodes:
            who = hosts_text(list(self.nodes))
            return f"the other hosts have no such trouble among each other, so it is {who} or its cable, port or interface"
        is_single = len(self.links) == 1 and self.has_good
        return "both hosts are fine with the others, so it is the path between the two" if is_single else ""


def blame(bad: Iterable[Pair], good: Iterable[Pair]) -> Blame:
    """The fewest culprits that explain the bad pairs: the node with the most bad pairs first, if it has at least two and no good one."""
    left, fine = list(dict.fromkeys(bad)), list(good)
    if len(left) > 1 and not fine and len({name for pair in left for name in pair}) > 2:
        return Blame(links=tuple(left), is_everywhere=True)
    nodes: list[str] = []
    while left:
        counts = {name: sum(name in pair for pair in left) for pair in left for name in pair}
        suspects = [name for name in counts if counts[name] > 1 and not any(name in pair for pair in fine)]
        if not suspects:
            break
        worst = max(suspects, key=lambda name: counts[name])
        nodes.append(worst)
        left = [pair for pair in left if worst not in pair]
    return Blame(tuple(nodes), tuple(left), has_good=bool(fine))
