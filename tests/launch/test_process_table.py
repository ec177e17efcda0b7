"""What /proc says of a process."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rankwise.launch import process_table
from rankwise.launch.process_table import read_sample, read_table
from tests.launch.jobs import eventually


@contextmanager
def reading_from(fd: int) -> Iterator[int]:
    """The pid of a process that reads from this descriptor."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "import os; os.read(0, 1)"], stdin=fd)
    try:
        yield child.pid
    finally:
        child.kill()
        child.wait()


def sleeps_in(pid: int) -> str:
    return read_sample(read_table(os.getpid())[pid]).wchan


@pytest.mark.skipif(not process_table._READ, reason="the numbers of system calls are not known for this processor")
def test_who_reads_from_a_terminal_waits_for_the_keyboard() -> None:
    ours, theirs = pty.openpty()
    try:
        with reading_from(theirs) as pid:
            eventually("it reads", lambda: sleeps_in(pid) == "n_tty_read")
    finally:
        os.close(ours)
        os.close(theirs)


def test_who_reads_from_a_socket_does_not() -> None:
    one, other = socket.socketpair()
    with one, other, reading_from(one.fileno()) as pid:
        eventually("it sleeps", lambda: sleeps_in(pid) not in ("", "do_exit"))
        assert "tty" not in sleeps_in(pid)


def test_a_process_we_could_not_look_at_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor is left: that is an error of ours, and not the end of every process."""

    def no_descriptor(*args: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(process_table.os, "open", no_descriptor)
    with pytest.raises(OSError, match="Too many open files"):
        read_table(os.getpid())


def test_processes_known_to_be_others_are_not_read_again_and_new_children_are_found() -> None:
    unrelated: set[int] = set()
    read_table(os.getpid(), unrelated)
    ours, theirs = os.pipe()
    with reading_from(ours) as pid:
        table = read_table(os.getpid(), unrelated)
        again = read_table(os.getpid(), unrelated)
    os.close(ours)
    os.close(theirs)

    assert os.getpid() in unrelated and os.getppid() in unrelated | {0}
    assert pid in table and pid in again and not unrelated & set(again)
