"""The compact log of one rank's collectives: flat arrays, so that 4,096 ranks of 2,000 entries fit in memory and compare fast."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

# Collectives in which all ranks' tensors must have the same number of elements and dtype; and those with one src or dst for all ranks.
SAME_SIZE = frozenset(
    {"all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "gather"}
)
ROOTED = frozenset({"broadcast", "scatter", "reduce", "gather"})


@dataclass(frozen=True)
class Signature:
    """The properties of a collective on which all ranks of a group must agree, slot by slot."""

    group: str
    op: str
    sizes: tuple[int, ...] = ()  # of the first tensor
    dtype: str = ""
    peer: int | None = None  # src, dst or root
    reduce_op: str = ""

    def compared(self) -> dict[str, Any]:
        """What must be the same on all ranks of this call, in the order differences are reported; None for what was not recorded."""
        is_same_size, is_rooted = self.op in SAME_SIZE, self.op in ROOTED
        return {
            "op": self.op,
            "size": prod(self.sizes) if is_same_size else None,
            "dtype": (self.dtype if is_same_size else "") or None,
            "src": self.peer if is_rooted else None,
            "reduce_op": self.reduce_op or None,
        }

    def __str__(self) -> str:
        shape = f"({', '.join(map(str, self.sizes))})" if self.sizes else ""
        return self.op + (f" of {self.dtype}{shape}" if self.dtype or shape else "")


@dataclass(frozen=True)
class LoggedCollective:
    """One collective of one rank, unpacked."""

    seq: int
    what: Signature
    created_ns: int
    done: bool
    site: int  # index into the rank's sites, -1 unknown
    origin: str = "user"  # user, forward, backward, ddp, fsdp_forward


@dataclass
class CollectiveLog:
    """One rank's collectives in all groups, in the order they were created. Append-only while it is filled, read-only afterwards."""

    signatures: list[Signature] = field(default_factory=list)
    sites: list[Any] = field(default_factory=list)  # stacks, innermost frame first
    what: array[int] = field(default_factory=lambda: array("I"))
    seq: array[int] = field(default_factory=lambda: array("I"))
    created_ns: array[int] = field(default_factory=lambda: array("Q"))
    done: bytearray = field(default_factory=bytearray)
    site: array[int] = field(default_factory=lambda: array("i"))
    origin: bytearray = field(default_factory=bytearray)
    is_partial: bool = False  # made from Python calls only, without torch's own record
    _index: dict[Any, int] = field(default_factory=dict, repr=False, compare=False)

    def add(self, seq: int, what: Signature, created_ns: int, done: bool, site: Any = None, origin: str = "user") -> None:
        if not (0 <= seq < 1 << 32 and 0 <= created_ns < 1 << 64):  # checked first, so that all columns keep the same length
            raise OverflowError(f"#{seq} at {created_ns} ns does not fit")
        self.what.append(self._intern(what, self.signatures))
        self.seq.append(seq)
        self.created_ns.append(created_ns)
        self.done.append(done)
        self.site.append(-1 if not site else self._intern(site, self.sites))
        self.origin.append(ORIGINS.index(origin))

    def __len__(self) -> int:
        return len(self.what)

    def __getitem__(self, i: int) -> LoggedCollective:
        return LoggedCollective(
            self.seq[i], self.signatures[self.what[i]], self.created_ns[i], bool(self.done[i]), self.site[i], ORIGINS[self.origin[i]]
        )

    def __iter__(self) -> Iterator[LoggedCollective]:
        return (self[i] for i in range(len(self)))

    def stack_of(self, entry: LoggedCollective) -> Any:
        return self.sites[entry.site] if entry.site >= 0 else ()

    def groups(self) -> set[str]:
        return {signature.group for signature in self.signatures}

    def pending(self) -> list[LoggedCollective]:
        found, i = [], self.done.find(0)
        while i >= 0:
            found.append(self[i])
            i = self.done.find(0, i + 1)
        return found

    def _intern(self, thing: Any, table: list[Any]) -> int:
        key = (table is self.sites, thing)
        index = self._index.get(key)
        if index is None:
            index = self._index[key] = len(table)
            table.append(thing)
        return index


# Calls in which DDP and FSDP make collectives of their own, each with the first of these collectives.
WRAPPER_CALLS = {"forward": "broadcast", "backward": "all_reduce", "ddp": "all_gather", "fsdp_forward": "all_gather_into_tensor"}
ORIGINS = ("user", *WRAPPER_CALLS)
