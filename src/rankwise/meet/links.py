"""Whether a host or a link is to blame for failed connections: a bad host spoils all its links, a bad link only one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rankwise.meet.differences import hosts_text

Pair = tuple[str, str]


@dataclass(frozen=True)
class LinkBlame:
    """Nodes whose links are all bad, and single bad links between other nodes."""

    nodes: tuple[str, ...] = ()
    links: tuple[Pair, ...] = ()
    is_everywhere: bool = False
    has_good: bool = False  # whether there are good links to compare with

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


def blame(bad: Iterable[Pair], good: Iterable[Pair]) -> LinkBlame:
    """The fewest culprits that explain the bad pairs: the node with the most bad pairs first, if it has at least two and no good one."""
    left, fine = list(dict.fromkeys(bad)), list(good)
    if len(left) > 1 and not fine and len({name for pair in left for name in pair}) > 2:
        return LinkBlame(links=tuple(left), is_everywhere=True)
    nodes: list[str] = []
    while left:
        counts = {name: sum(name in pair for pair in left) for pair in left for name in pair}
        suspects = [name for name in counts if counts[name] > 1 and not any(name in pair for pair in fine)]
        if not suspects:
            break
        worst = max(suspects, key=lambda name: counts[name])
        nodes.append(worst)
        left = [pair for pair in left if worst not in pair]
    return LinkBlame(tuple(nodes), tuple(left), has_good=bool(fine))
