"""What a model raised: what kind of fault it is, and how it travels to the caller."""

from __future__ import annotations

import errno
import pickle
import traceback

import torch

from rankwise.pool.exceptions import pickled

_LONGEST = 20_000  # bytes of an exception, or of its traceback
_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")  # the allocator's words differ from one system to the next


def is_out_of_memory(error: BaseException | None) -> bool:
    """Python's and the GPU's own errors, the kernel's, or the CPU allocator's, which is a plain RuntimeError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


def release_memory() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def failure(error: BaseException, longest: int = _LONGEST) -> tuple[bytes, str]:
    """As `packed_error`; what would end the caller's thread when raised there (SystemExit, KeyboardInterrupt) travels as text only."""
    data, text = packed_error(error, longest)
    return (data if isinstance(error, Exception) else b""), text


def packed_error(error: BaseException, longest: int = _LONGEST) -> tuple[bytes, str]:
    """The exception as the caller will see it, if it can travel, and the worker's traceback in any case."""
    text = "".join(traceback.format_exception(error))
    error.__traceback__ = None
    return pickled(error, longest), text[-longest:]


def shortened(packed: tuple[bytes, str], longest: int) -> tuple[bytes, str]:
    """An exception that leaves room for others in the packet; its text goes on being there, from the end."""
    data, text = packed
    return (data if len(data) <= longest else pickled(pickle.loads(data), longest)), text[-longest:]
