"""Ways to run a worker out of memory: a limit on its addresses, set from outside, and a control group in which the kernel kills."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

_ROOTS = (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"))  # version 2, version 1
NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


class Group:
    """A control group of its own; processes that take more than it has are killed by the kernel."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, pid: int) -> None:
        with contextlib.suppress(OSError):  # it has gone
            (self._path / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        deadline = time.monotonic() + 10
        while True:
            try:
                self._path.rmdir()
                return
            except OSError:  # its last process is still ending
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


@contextlib.contextmanager
def memory_group(nbytes: int) -> Iterator[Group | str]:
    """A group with this limit, or why there is none."""
    path = None
    why = "no control group with a memory controller"
    for root, limit in _ROOTS:
        try:
            path = Path(root, f"rankwise-{os.getpid()}")
            path.mkdir()
            if (path / limit).exists():
                (path / limit).write_text(str(nbytes))
                break
            path.rmdir()
        except OSError as error:
            why = f"no control group can be made: {error}"
        path = None
    if path is None:
        yield why
        return
    group = Group(path)
    try:
        yield group
    finally:
        group.remove()


def squeeze(pid: int, seconds: float) -> bool:
    """For a while the process can get no more addresses than it has. False if it has gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize(), resource.RLIM_INFINITY))
        time.sleep(seconds)
        resource.prlimit(pid, resource.RLIMIT_AS, NO_LIMIT)
    except (OSError, ValueError, IndexError):
        return False
    return True
