"""Keeps the few descriptors that the probe needs open: high numbers, closed on exec, each checked to be still ours before use."""

import fcntl
import os

_LOWEST = 64  # above the usual numbers, so that a script's own files get the numbers they would get without us
_open: dict[str, tuple[int, str, tuple[int, int]]] = {}  # key: descriptor, path, its device and inode


def keep_open(key: str, path: str) -> int:
    """Open a file of this process for appending. After a fork the same descriptor then stands for the child's own file."""
    kept = _checked(key)
    if kept >= 0 and _open[key][1] == path:
        return kept
    low = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fd = os.dup2(low, kept, inheritable=False) if kept >= 0 else fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _LOWEST)
    finally:
        os.close(low)
    _open[key] = fd, path, _identity(fd)
    return fd


def reopen_in_child(key: str, path: str) -> None:
    """After a fork: an open descriptor becomes the child's own."""
    if _checked(key) >= 0:
        keep_open(key, path)


def find(key: str, path: str) -> int:
    """The open descriptor of this very path; -1 where there is none, or the user has closed it."""
    return _checked(key) if key in _open and _open[key][1] == path else -1


def _checked(key: str) -> int:
    """The descriptor if it is still ours: a script may close all (as daemons do) and open its own files under the same numbers."""
    if key not in _open:
        return -1
    fd, _, identity = _open[key]
    try:
        return fd if _identity(fd) == identity else -1
    except OSError:
        return -1


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
