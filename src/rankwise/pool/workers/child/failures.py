"""What a model did wrong: which kind of fault it raised, and signals it sends to its own process."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import torch

from rankwise.pool.memory.requests import failure
from rankwise.pool.transport.connection import StatusPage

_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")  # the allocator's words differ from one system to the next
# After these a process can do nothing on the card any more: CUDA's numbers and words, and those of its kin.
_STICKY_CODES = frozenset((214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999))
_STICKY = (
    *("device-side assert", "illegal memory access", "unspecified launch failure", "misaligned address", "illegal instruction"),
    *("hardware stack error", "invalid program counter", "operation not supported on global/shared address space", "launch timed out"),
    *("uncorrectable ecc", "uncorrectable nvlink", "context is destroyed", "cuda error: unknown error", "tensor memory"),
)
_ACCELERATOR_ERROR: type[BaseException] = getattr(torch, "AcceleratorError", RuntimeError)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Python's and the GPU's own errors, the kernel's, or the CPU allocator's, which is a plain RuntimeError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


class Poisoned(BaseException):
    """After this error nothing runs on the card in this process any more, whatever it is asked."""

    def __init__(self, packed: tuple[bytes, str]) -> None:
        super().__init__(packed[1])
        self.packed = packed  # the error as it travels


def check_poison(error: BaseException) -> None:
    """Raises Poisoned where this error, or one it came from, is of that kind; or where the card says so when it is asked."""
    if isinstance(error, Poisoned):
        raise error
    if is_out_of_memory(error):
        return
    if any(_is_sticky(found) for found in _chain(error)) or not _card_answers():
        raise Poisoned(failure(error))


def _is_sticky(error: BaseException) -> bool:
    if getattr(error, "error_code", None) in _STICKY_CODES and isinstance(error, _ACCELERATOR_ERROR):
        return True
    text = str(error).lower() if isinstance(error, RuntimeError) else ""
    return any(kind in text for kind in ("cuda", "hip", "accelerator")) and any(words in text for words in _STICKY)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _card_answers() -> bool:
    """A model may have caught the card's error and raised another one."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    try:
        torch.cuda.synchronize()
    except Exception as error:
        return is_out_of_memory(error)
    return True


def run_divided(run: Callable[[int, int], None], judge: Callable[[BaseException, int, int], int], start: int, stop: int) -> None:
    """Run items `start` to `stop` at once; where that fails, in as many parts as `judge` says (0: the failure is final)."""
    try:
        run(start, stop)
        return
    except BaseException as error:
        parts = judge(error, start, stop)
    size = stop - start
    for i in range(parts):
        run_divided(run, judge, start + i * size // parts, start + (i + 1) * size // parts)


def release_memory() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def note_own_doing(page: StatusPage) -> None:
    """A signal that the model's code sends to its own process looks like one from outside, so a note is left on the page first. Only for
    the ways that Python has: a signal that C code sends cannot be told from others."""
    me, group = os.getpid(), os.getpgrp()

    def noting(act: Callable[..., Any], is_me: Callable[..., bool]) -> Callable[..., Any]:
        def act_noting(*args: Any) -> Any:
            if is_me(*args):
                page.note_own_doing()
            return act(*args)

        return act_noting

    os.kill = noting(os.kill, lambda pid, number: pid in (me, 0, -1, -group) and number)
    os.killpg = noting(os.killpg, lambda pgid, number: pgid in (0, group) and number)
    os.abort = noting(os.abort, lambda: True)
    signal.raise_signal = noting(signal.raise_signal, lambda number: True)
    signal.pthread_kill = noting(signal.pthread_kill, lambda thread, number: bool(number))
