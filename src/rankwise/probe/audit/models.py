"""Knows the models that DDP wraps on this rank: their parameters by name, what DDP reduces of them, and their buffers."""

import weakref
from typing import Any

from . import record

_MAX_NAMES = 4000


class Wrapped:
    """One DDP wrapper, held by a weak reference, so that the user may drop it at any time."""

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = weakref.ref(wrapper)
        ignored = getattr(wrapper, "parameters_to_ignore", ())
        self.own = {id(p) for name, p in wrapper.module.named_parameters() if name in ignored}  # may differ between ranks
        self.reduced = {id(p) for p in wrapper.module.parameters() if p.requires_grad} - self.own

    @property
    def wrapper(self) -> Any:
        return self._wrapper()

    def named(self) -> list[tuple[str, Any]]:
        wrapper = self._wrapper()
        return [] if wrapper is None else list(wrapper.module.named_parameters())[:_MAX_NAMES]

    def buffers(self) -> list[tuple[str, Any]]:
        """The buffers, without those that DDP was told to ignore."""
        wrapper = self._wrapper()
        if wrapper is None:
            return []
        ignored = getattr(wrapper, "parameters_to_ignore", ())
        return [(name, b) for name, b in wrapper.module.named_buffers() if name not in ignored][:_MAX_NAMES]


known: list[Wrapped] = []


def wrapped(wrapper: Any, site: int) -> None:
    """A DDP wrapper was built."""
    import torch.distributed as dist

    one = Wrapped(wrapper)
    known.append(one)
    group = getattr(wrapper, "process_group", None)
    record.write(
        "ddp",
        site=site,
        broadcast_buffers=bool(getattr(wrapper, "broadcast_buffers", True)),
        ranks=[] if group is None else list(dist.get_process_group_ranks(group))[:4096],
        reduced=len(one.reduced),
        bytes=sum(p.numel() * p.element_size() for p in wrapper.module.parameters() if p.requires_grad),
        cap=int(getattr(wrapper, "bucket_bytes_cap", 0) or 0),
    )


def names() -> dict[int, tuple[str, bool]]:
    """id of each parameter of a wrapped model: its name, and whether DDP reduces its gradient."""
    found: dict[int, tuple[str, bool]] = {}
    for one in known:
        for name, p in one.named():
            found[id(p)] = (name, id(p) in one.reduced)
    return found


def own() -> set[int]:
    """ids of parameters that DDP was told to leave alone."""
    return set().union(*(one.own for one in known))


def is_joining() -> bool:
    """Whether training runs inside torch's Join, where ranks with less data rightly take fewer steps."""
    return any(getattr(getattr(one.wrapper, "_join_config", None), "enable", False) for one in known)


def has_hook() -> bool:
    """Whether the user gave DDP a communication hook: then gradients need not be averaged at every step."""
    return any(getattr(one.wrapper, "_comm_hooks", None) for one in known)
