"""Which ranks or hosts differ from the others in a value that should be the same on all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from rankwise.findings import ranks_text

_MOST = 4  # at most so many hosts are named

Member = TypeVar("Member", int, str)  # a rank or a host


@dataclass(frozen=True)
class Difference(Generic[Member]):
    """`odd` members have another value than the majority; without a majority `usual` is None and all members are odd."""

    values: dict[Member, object]
    usual: object | None
    odd: tuple[Member, ...]

    def text(self, prefix: str = "") -> str:
        """All sides: `2.13.0 on ranks 0-2, 2.12.0 on rank 3`."""
        sides: dict[object, list[Member]] = {}
        for member, value in sorted(self.values.items()):
            sides.setdefault(value, []).append(member)
        return ", ".join(f"{prefix}{value} on {members_text(members)}" for value, members in sides.items())


def find_difference(values: Mapping[Member, object]) -> Difference[Member] | None:
    """The members whose value differs from the majority's; None where all values are the same."""
    if len(set(values.values())) < 2:
        return None
    (usual, count), *_ = Counter(values.values()).most_common()
    if count <= len(values) / 2:
        return Difference(dict(values), None, tuple(sorted(values)))
    return Difference(dict(values), usual, tuple(sorted(member for member, value in values.items() if value != usual)))


def members_text(members: Iterable[int | str]) -> str:
    """`ranks 0-2` for ranks, `node-a, node-b` for hosts."""
    ranks = [member for member in members if isinstance(member, int)]
    return ranks_text(ranks) if ranks else hosts_text([member for member in members if isinstance(member, str)])


def hosts_text(hosts: list[str]) -> str:
    """`node-a, node-b and 6 more`: short for any number of hosts."""
    if len(hosts) <= _MOST:
        return " and ".join(filter(None, [", ".join(hosts[:-1]), hosts[-1]])) if hosts else "no host"
    return f"{', '.join(hosts[:_MOST])} and {len(hosts) - _MOST} more"
