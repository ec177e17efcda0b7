"""Who differs: the odd ones out among values that should be the same everywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """`odd` hosts have another value than the most; with no clear most, all hosts are odd and `usual` is None."""

    usual: str | None
    odd: dict[str, str]
    values: dict[str, str]

    def text(self) -> str:
        """Both sides: `2.12.0 on node-b, 2.13.0 on node-a, node-c`; the odd ones first."""
        sides: dict[str, list[str]] = {}
        for host, value in sorted(self.values.items(), key=lambda pair: (pair[0] not in self.odd, pair[0])):
            sides.setdefault(value, []).append(host)
        return ", ".join(f"{value} on {hosts_text(hosts)}" for value, hosts in sides.items())


def difference(values: Mapping[str, str]) -> Difference | None:
    """None where all values are the same."""
    counts = Counter(values.values()).most_common()
    if len(counts) < 2:
        return None
    usual = counts[0][0] if counts[0][1] > counts[1][1] else None
    return Difference(usual, {host: value for host, value in values.items() if value != usual}, dict(values))


def hosts_text(hosts: list[str], most: int = 4) -> str:
    """`node-a, node-b and 6 more`: short at any number."""
    if len(hosts) <= most:
        return " and ".join(filter(None, [", ".join(hosts[:-1]), hosts[-1]])) if hosts else "no host"
    return f"{', '.join(hosts[:most])} and {len(hosts) - most} more"
