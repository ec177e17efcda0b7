"""Memory that a worker's tensors no longer use: it is kept for the next task, and goes back to the machine when there is none.

An allocator that returns it at once makes the kernel find and clear the same pages again for each forward, which takes a tenth of
the time of a model with large activations; one that never does lets an idle worker sit on what its largest task took.
"""

from __future__ import annotations

import ctypes

KEPT_S = 1.0
# torch brings mimalloc on some machines, and there is no other way to tell it; read when torch is loaded.
ENVIRONMENT = {"MIMALLOC_PURGE_DELAY": f"{1000 * KEPT_S:.0f}", "MIMALLOC_ARENA_PURGE_MULT": "1"}
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_LARGEST_MMAP_THRESHOLD = 32 << 20  # glibc takes no more
_libc = ctypes.CDLL(None)


def keep() -> None:
    """The same for glibc, in this process from now on."""
    try:
        _libc.mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        _libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    except AttributeError:  # another C library
        pass


def return_to_kernel() -> None:
    """What glibc keeps; mimalloc looks for itself, whenever something large is freed."""
    try:
        _libc.malloc_trim(0)
    except AttributeError:
        pass
