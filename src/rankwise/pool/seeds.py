"""Seeds made of seeds: the pool has one, and each worker, model and request of a stream gets its own from it, always the same."""

from __future__ import annotations

import hashlib
import operator
import secrets
from typing import Any

from rankwise.errors import UsageError

_LEAST, _MOST = -(2**63), 2**64 - 1  # what torch.manual_seed takes


def checked_seed(seed: Any) -> int | None:
    if seed is None:
        return None
    try:
        number = operator.index(seed)
    except TypeError:
        number = _LEAST - 1
    if isinstance(seed, bool) or not _LEAST <= number <= _MOST:
        raise UsageError(f"seed must be a whole number that torch.manual_seed takes, not {seed!r}", next=("seed=0",))
    return number


def any_seed() -> int:
    return secrets.randbits(63)


def seed_of(seed: int | None, number: int) -> int | None:
    """That of the request with this number, of a stream that has this seed."""
    return derived(seed, number) if seed is not None else None


def derived(seed: int, *what: str | int) -> int:
    """The same for the same; for anything else another one."""
    return int.from_bytes(hashlib.blake2b(repr((seed, *what)).encode(), digest_size=8).digest(), "big") >> 1
