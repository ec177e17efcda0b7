"""Checks what the user gave before anything runs: an error names the argument, what it is, and what it may be."""

from __future__ import annotations

import hashlib
import math
import operator
import re
import secrets
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from rankwise.errors import UsageError
from rankwise.sizes import bytes_text

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def check_number(what: str, value: Any, *, least: float, above: bool = False, whole: bool = False, none: bool = False) -> None:
    """`above`: it has to be more than the least; `none`: it may be None."""
    if value is None and none:
        return
    kind = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind) or not (value > least if above else value >= least) or math.isinf(value):
        bound = f"{'above' if above else 'of at least'} {least:g}"
        allowed = f"a {'whole number' if whole else 'number'} {bound}" + (", or None" if none else "")
        raise UsageError(f"{what} is {_shown(value)}; it must be {allowed}")


def check_pool(workers: Any, max_queue: Any, idle_s: Any, threads: Any, memory: Any, lane_bytes: Any) -> None:
    if workers != "auto" and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 0):
        raise UsageError(
            f'workers is {_shown(workers)}; it must be a number, or "auto"', next=('"auto" is one per core, 0 runs models in this process',)
        )
    check_number("max_queue", max_queue, least=1, whole=True)
    check_number("idle_s", idle_s, least=0, none=True)
    check_number("threads", threads, least=1, whole=True, none=True)
    memory_limits(memory, ())
    if lane_bytes is not None:
        parse_bytes(lane_bytes, "lane_bytes")


def check_engine(engine: Any, address: Any, engines: Iterable[str]) -> None:
    if engine not in engines:
        raise UsageError(
            f"engine is {_shown(engine)}; it must be one of {', '.join(engines)}",
            next=('"processes" is this machine, "ray" a Ray cluster',),
        )
    if address is not None and engine != "ray":
        raise UsageError(f"address is {_shown(address)}, but the engine {engine!r} has none", next=('give engine="ray"',))
    if address is not None and not isinstance(address, str):
        raise UsageError(f"address is {_shown(address)}; it must be the text that ray.init takes", next=('address="10.0.0.1:6379"',))


def check_models(models: Any) -> None:
    if not isinstance(models, Mapping):
        raise UsageError(f"models is {_shown(models)}; it must be a dict of names and models", next=(_EXAMPLE,))
    if not models:
        raise UsageError("a pool needs at least one model", next=(_EXAMPLE,))
    for name in models:
        if not isinstance(name, str):
            raise UsageError(f"the name of a model is {_shown(name)}; it must be a string", next=(_EXAMPLE,))


def memory_limits(memory: Any, devices: Iterable[str]) -> dict[str, int]:
    """The budget of each device; "cuda" is all GPUs, and one that is not here needs none."""
    if memory is None:
        return {}
    devices = {"cpu", *devices}  # a worker with a GPU may hold models of the CPU as well
    if not isinstance(memory, Mapping):
        return {device: parse_bytes(memory, "memory") for device in devices}
    limits = {}
    for device, size in sorted(memory.items(), key=str):  # "cuda" before "cuda:0", which says more
        if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda(:\S+)?", device):
            raise UsageError(f"memory names a device {device!r}, which is none", next=('write it as {"cpu": "4GB", "cuda:0": "20GB"}',))
        nbytes = parse_bytes(size, f"memory of {device!r}")
        limits.update({own: nbytes for own in devices if device in (own, own.split(":")[0])})
    return limits


def parse_bytes(size: Any, what: str = "") -> int:
    """1_000_000, 1.5e9, "200MB", "1.5 GiB"; more than none."""
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-zA-Z]*)\s*", size) if isinstance(size, str) else None
    if match and match[2].upper() in _UNITS:
        nbytes = int(float(match[1]) * _UNITS[match[2].upper()]) if match[2] or "." in match[1] else int(match[1])
    elif isinstance(size, (int, float)) and not isinstance(size, bool) and float(size).is_integer():
        nbytes = int(size)
    else:
        nbytes = 0
    if nbytes < 1:
        given = f"{what} is {_shown(size)}" if what else _shown(size)
        raise UsageError(f"{given}, which is not a size", next=('write it as 500_000_000, "500MB" or "1.5GiB"',))
    return nbytes


def check_shape(shape: Any, itemsize: int, limit_bytes: int | None) -> tuple[int, ...]:
    """Of an array that is to be made: whole numbers from 0 on, and not more bytes than there can ever be."""
    sizes = (shape,) if not isinstance(shape, Iterable) else tuple(shape)
    try:
        found = tuple([size.__index__() for size in sizes])
    except AttributeError:
        found = (-1,)
    if any(size < 0 for size in found):
        raise UsageError(f"the shape is {_shown(shape)}; it must be a whole number of at least 0, or several")
    nbytes = math.prod(found) * itemsize
    if limit_bytes is not None and nbytes > limit_bytes:
        raise UsageError(
            f"an array of shape {found} takes {bytes_text(nbytes)}, more than there is lane memory ({bytes_text(limit_bytes)})",
            next=("make it smaller, or: Pool(..., lane_bytes=…)",),
        )
    return found


def checked_deadline(deadline_s: Any) -> float | None:
    if deadline_s is None:
        return None
    if not isinstance(deadline_s, Real) or math.isnan(deadline_s):
        raise UsageError(f"deadline_s must be a number of seconds, not {deadline_s!r}", next=("deadline_s=0.5",))
    return float(deadline_s)


def checked_priority(priority: Any) -> int:
    try:
        return operator.index(priority)
    except TypeError:
        raise UsageError(
            f"priority must be a whole number, not {priority!r}", why="tasks with a higher one go first; 0 is usual", next=("priority=1",)
        ) from None


def check_window(window: Any) -> None:
    try:
        is_right = window is None or operator.index(window) >= 1
    except TypeError:
        is_right = False
    if not is_right:
        raise UsageError(f"window must be a whole number of at least 1, not {window!r}", why="it is how many requests may be under way")


def is_request(request: Any) -> bool:
    """Raises for what is no request of `stream`."""
    if isinstance(request, str) or not isinstance(request, Iterable):
        raise UsageError(
            f"a request is {_shown(request)}; it must be a tuple of a model's name and its inputs", next=('pool.stream([("mlp", x)])',)
        )
    return True


def _shown(value: Any) -> str:
    is_short = isinstance(value, (str, int, float, type(None), tuple)) and len(repr(value)) < 80
    return repr(value) if is_short else f"of type {type(value).__name__}"


_EXAMPLE = 'Pool({"mlp": Model("my_models:build_mlp")})'


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
