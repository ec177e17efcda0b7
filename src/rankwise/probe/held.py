"""The few descriptors the probe keeps open: high numbers, closed on exec, and each checked to be still ours before it is used."""

import fcntl
import os

_LOWEST = 64  # the numbers a script gets for its own files stay what they were
_held: dict[str, tuple[int, str, tuple[int, int]]] = {}  # key: descriptor, path, what fstat said of it


def hold(key: str, path: str) -> int:
    """Open a file of this process for appending. Again after a fork: the same number then stands for the child's own file."""
    kept = _ours(key)
    if kept >= 0 and _held[key][1] == path:
        return kept
    low = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fd = os.dup2(low, kept, inheritable=False) if kept >= 0 else fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _LOWEST)
    finally:
        os.close(low)
    _held[key] = fd, path, _identity(fd)
    return fd


def rehold(key: str, path: str) -> None:
    """After a fork: what is held becomes the child's own; what is not held stays so."""
    if _ours(key) >= 0:
        hold(key, path)


def descriptor(key: str, path: str) -> int:
    """The descriptor held for this very path; -1 where there is none, or the user has closed it."""
    return _ours(key) if key in _held and _held[key][1] == path else -1


def let_go(key: str) -> bool:
    """Give a descriptor back, where the script has used up all others; True if there was one."""
    fd = _ours(key)
    _held.pop(key, None)
    if fd >= 0:
        os.close(fd)
    return fd >= 0


def _ours(key: str) -> int:
    """A script may close every descriptor (daemons do), and open files of its own under the same numbers."""
    if key not in _held:
        return -1
    fd, _, identity = _held[key]
    try:
        return fd if _identity(fd) == identity else -1
    except OSError:
        return -1


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
