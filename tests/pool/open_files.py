"""Which files this process has open, for tests that nothing may leave one open."""

from __future__ import annotations

import contextlib
import os


def open_files() -> set[tuple[int, int]]:
    """Each by its number on its device, which no other has: what earlier tests had open may be closed meanwhile."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that listed them
            status = os.fstat(int(fd))
            found.add((status.st_dev, status.st_ino))
    return found
