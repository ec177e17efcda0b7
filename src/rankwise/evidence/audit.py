"""What the audit of one rank's training saw, as frozen records; `site` numbers point into `Audit.sites`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, get_args, get_type_hints

from rankwise.evidence.stack import Stack
from rankwise.thaw import thaw

_MOST = 6000  # at most so many records of a kind are kept, from the beginning and the end

# A parameter: name, whether DDP reduces it, checksum and norm of its gradient, the same of its weights; None where it could not be read.
Row = tuple[str, bool, int | None, float | None, int | None, float | None]
BufferRow = tuple[str, int, tuple[float, ...]]


@dataclass(frozen=True)
class Record:
    t: int = field(default=0, kw_only=True)  # when it was seen, in nanoseconds of the monotonic clock


@dataclass(frozen=True)
class Wrapper(Record):
    """A DDP wrapper was built."""

    site: int
    broadcast_buffers: bool
    ranks: tuple[int, ...]
    reduced: int
    bytes: int
    cap: int = 0  # bytes of a bucket, at most


@dataclass(frozen=True)
class OptimizerSeen(Record):
    """An optimizer at its first step: how many of its parameters belong to a wrapped model."""

    i: int
    site: int
    built: int
    held: int
    of_model: int
    with_grad: int
    model_with_grad: int


@dataclass(frozen=True)
class Window(Record):
    """What happened between two steps of an optimizer, and for how many steps in a row; see `probe/audit/window.py` for the letters."""

    i: int
    pattern: str
    first: int
    count: int
    site: int
    lines: int = 0  # number of places its backwards were made from
    places: dict[str, int] = field(default_factory=dict)
    divisor: float | None = None
    root: str = ""
    is_mean: bool = False


@dataclass(frozen=True)
class StepSeen(Record):
    """A sampled step: fingerprints right before the optimizer changes the weights."""

    i: int
    n: int
    syncs: int
    joined: bool
    hooked: bool
    of_model: bool
    rows: tuple[Row, ...]
    settings: str
    state: int | None
    buffers: tuple[BufferRow, ...]
    site: int
    foreign: int = 0  # parameters of this optimizer that belong to no wrapped model and have no gradient
    unheld: tuple[str, ...] = ()  # parameters of a wrapped model that have a gradient and are not in this optimizer
    loss: float | None = None
    local: tuple[tuple[str, float | None], ...] = ()  # norms of some gradients of the last backward, before DDP reduced them


@dataclass(frozen=True)
class PassBegun(Record):
    """An iteration over a DataLoader began."""

    loader: int
    n: int
    site: int
    made: int
    sampler: str
    shuffles: bool
    epoch: int | None
    has_epoch: bool
    is_distributed: bool
    size: int | None
    is_iterable: bool
    workers: int
    backwards: int
    data_sum: int | None = None  # checksum of what the dataset holds, where it could be read


@dataclass(frozen=True)
class Drawn(Record):
    """The sampler gave the indices of one batch."""

    loader: int
    p: int
    n: int
    sum: int
    ids: tuple[Any, ...]
    size: int


@dataclass(frozen=True)
class BatchSeen(Record):
    """The loop got a batch: fingerprints of its first tensors."""

    loader: int
    p: int
    n: int
    sums: tuple[int | None, ...]
    bad: tuple[int, ...]
    numel: int
    rows: int
    backwards: int


@dataclass(frozen=True)
class PassEnded(Record):
    """A pass came to its end (`whole`), or another began before it had."""

    loader: int
    n: int
    whole: bool
    batches: int
    samples: int
    sum: int
    backwards: int
    repeats: int


@dataclass(frozen=True)
class ForwardSeen(Record):
    """A sampled forward through DDP."""

    n: int
    site: int
    with_grad: bool
    training: bool
    sums: tuple[int | None, ...]


@dataclass(frozen=True)
class RandomUsed(Record):
    """Reading the dataset used random numbers: which generators, and their state before."""

    n: int
    used: tuple[str, ...]
    before: tuple[int, ...]
    worker: int


@dataclass(frozen=True)
class Seeded(Record):
    which: str
    value: str
    site: int


@dataclass(frozen=True)
class Loaded(Record):
    """`load_state_dict` of a model or an optimizer; how many DDP wrappers and steps there were by then."""

    what: str
    site: int
    wrapped: int
    steps: int


@dataclass(frozen=True)
class Wrote(Record):
    path: str
    how: str
    site: int


@dataclass(frozen=True)
class Reduced(Record):
    """A collective of the user's, and what its tensor is, where that is known."""

    op: str
    group: str
    n: int
    label: str
    words: tuple[str, ...]
    values: tuple[float | None, ...]  # the tensor's numbers, where they are few and on the CPU
    numel: int
    site: int


@dataclass(frozen=True)
class Times(Record):
    """Milliseconds of some steps together."""

    steps: int
    wall: float
    audit: float
    data: float
    forward: float
    backward: float
    optimizer: float
    collective: float
    save: float


@dataclass(frozen=True)
class LinksSeen(Record):
    """Connections to other hosts: local and remote address, and since each was opened, bytes sent and microseconds they were under way."""

    links: tuple[tuple[str, str, int, int], ...]


@dataclass(frozen=True)
class BadLoss(Record):
    n: int
    site: int
    value: str


@dataclass(frozen=True)
class Left(Record):
    """Backwards at the end that no step followed."""

    pattern: str


@dataclass(frozen=True)
class DataParallelBuilt(Record):
    site: int
    devices: int = 0


@dataclass(frozen=True)
class AuditEnd(Record):
    loss: float
    losses: int


def _of_kind(kind: str) -> tuple[Any, ...]:
    """A field for the records that the probe writes under this name."""
    return field(default=(), metadata={"kind": kind})


@dataclass(frozen=True)
class Audit:
    """The audit of one rank, in the order it happened."""

    sites: dict[int, Stack] = field(default_factory=dict)
    wrappers: tuple[Wrapper, ...] = _of_kind("ddp")
    optimizers: tuple[OptimizerSeen, ...] = _of_kind("optimizer")
    windows: tuple[Window, ...] = _of_kind("window")
    steps: tuple[StepSeen, ...] = _of_kind("step")
    passes: tuple[PassBegun, ...] = _of_kind("pass")
    drawn: tuple[Drawn, ...] = _of_kind("drawn")
    batches: tuple[BatchSeen, ...] = _of_kind("batch")
    pass_ends: tuple[PassEnded, ...] = _of_kind("pass_end")
    forwards: tuple[ForwardSeen, ...] = _of_kind("forward")
    randoms: tuple[RandomUsed, ...] = _of_kind("random")
    seeds: tuple[Seeded, ...] = _of_kind("seeded")
    loads: tuple[Loaded, ...] = _of_kind("loaded")
    writes: tuple[Wrote, ...] = _of_kind("wrote")
    reduces: tuple[Reduced, ...] = _of_kind("reduced")
    times: tuple[Times, ...] = _of_kind("times")
    links: tuple[LinksSeen, ...] = _of_kind("links")
    bad_losses: tuple[BadLoss, ...] = _of_kind("bad_loss")
    left: tuple[Left, ...] = _of_kind("left")
    data_parallel: tuple[DataParallelBuilt, ...] = _of_kind("data_parallel")
    ends: tuple[AuditEnd, ...] = _of_kind("end")


_KINDS = {f.metadata["kind"]: (f.name, get_args(hint)[0]) for f, hint in zip(fields(Audit), get_type_hints(Audit).values()) if f.metadata}


def total_times(times: tuple[Times, ...], least_steps: int = 10) -> Times | None:
    """The sum of a rank's times; None where there are too few steps."""
    steps = sum(one.steps for one in times)
    if steps < least_steps:
        return None
    parts = ("wall", "data", "forward", "backward", "optimizer", "collective", "save")
    return Times(steps=steps, audit=times[-1].audit, **{part: sum(getattr(one, part) for one in times) for part in parts})


class AuditLog:
    """Filled line by line from a journal."""

    def __init__(self) -> None:
        self._records: dict[str, list[Any]] = {name: [] for name, _ in _KINDS.values()}
        self.num_taken = 0

    def take(self, facts: dict[str, Any]) -> None:
        """One line of the probe's journal; raises ValueError or KeyError for anything else. A longer window replaces its earlier line."""
        name, cls = _KINDS[facts["a"]]
        record, kept = thaw(cls, facts), self._records[name]
        self.num_taken += 1
        if name == "windows" and _goes_on(kept, record):
            return
        kept.append(record)
        if len(kept) > _MOST:
            del kept[_MOST // 2]

    def frozen(self, sites: dict[int, Stack], randoms: list[RandomUsed]) -> Audit:
        """The finished record, with the places it mentions and what the rank's DataLoader workers reported."""
        records: dict[str, Any] = {name: tuple(kept) for name, kept in self._records.items()}
        records["randoms"] += tuple(randoms)
        return Audit(sites={site: sites[site] for site in _sites_in(records) if site in sites}, **records)

    @property
    def randoms(self) -> list[RandomUsed]:
        return self._records["randoms"]


def _goes_on(kept: list[Window], record: Window) -> bool:
    """Whether the record is the latest window of its optimizer again, only longer; then it replaces that one."""
    at = next((at for at in range(len(kept) - 1, max(-1, len(kept) - 5), -1) if kept[at].i == record.i), None)
    if at is None or (kept[at].first, kept[at].pattern) != (record.first, record.pattern):
        return False
    kept[at] = record
    return True


def _sites_in(records: dict[str, Any]) -> set[int]:
    found: set[int] = set()
    for kept in records.values():
        for record in kept:
            found |= {getattr(record, name) for name in _SITE_FIELDS if hasattr(record, name)}
            found |= set(getattr(record, "places", {}).values())
    return found


_SITE_FIELDS = ("site", "made", "built")
