"""Finds the largest batch that fits, by trying; runs in the torch process, so that running out of memory ends nothing else."""

from __future__ import annotations

import contextlib
import gc
import importlib
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

_LARGEST = 1 << 24
_MEMORY_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "bad_alloc")


def find_fit(target: str, limit_s: float, memory: int) -> Iterator[dict[str, Any]]:
    """Double the batch until it runs out of memory, then halve the gap. `memory`: bytes a step may take on the CPU."""
    step = _load(target)
    deadline = time.monotonic() + limit_s
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        _limit_memory(memory)
    yield {"device": device, "memory": memory if device == "cpu" else torch.cuda.get_device_properties(0).total_memory}
    fits, fails, size = 0, 0, 1
    why = ""
    while not why and size <= _LARGEST and size > fits and (not fails or size < fails):
        yield {"trying": size}
        started = time.monotonic()
        is_fit, peak = _try(step, size, device)
        spent = time.monotonic() - started
        if is_fit:
            fits = size
            yield {"largest": size, "peak": peak}
        else:
            fails = size
        size = (fits + fails) // 2 if fails else fits * 2
        if time.monotonic() + spent * (2 if not fails else 1) > deadline:
            why = f"the next size would not end within the time limit: the last one took {spent:.1f} s"
    if not fails:
        why = why or f"larger than {_LARGEST:,} was not tried"
    yield {"largest": fits, "first_failing": fails or None, "why": why}


def _load(target: str) -> Callable[[int], Any]:
    module_name, _, name = target.partition(":")
    step = getattr(importlib.import_module(module_name), name)
    if not callable(step):
        raise TypeError(f"{target} is not callable")
    return step  # type: ignore[no-any-return]


def _try(step: Callable[[int], Any], size: int, device: str) -> tuple[bool, int]:
    """Whether one step of this size ends, and the most memory it took. Twice, because an optimizer allocates its state in the first."""
    _forget_peak(device)
    try:
        for _ in range(2):
            step(size)
            if device == "cuda":
                torch.cuda.synchronize()
        return True, _peak(device)
    except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
        words = str(error).lower()
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not any(word in words for word in _MEMORY_WORDS):
            raise
        return False, _peak(device)
    finally:
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


def _limit_memory(memory: int) -> None:
    """Allow `memory` bytes of private memory more than now, so that a step fails as it would on a GPU instead of being killed."""
    used = sum(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData")) << 10
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = used + memory
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _forget_peak(device: str) -> None:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak of resident memory begins anew


def _peak(device: str) -> int:
    if device == "cuda":
        return int(torch.cuda.max_memory_reserved())
    status = Path("/proc/self/status").read_text()
    return next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM")), 0)
