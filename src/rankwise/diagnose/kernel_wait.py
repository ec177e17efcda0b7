"""The kernel function a process sleeps in: used where the Python stack shows only a line."""

from __future__ import annotations

from rankwise.evidence.records import RankEvidence

# part of the kernel function's name: the cause it points to, and what the rank does
_WAITS = (
    ("futex", "RW303", "waits for a lock (or another thread)"),
    ("wait_for_partner", "RW305", "waits in open() for the other end of a named pipe (FIFO)"),
    ("pipe_read", "RW305", "waits for data on a pipe that nobody writes to"),
    ("pipe_write", "RW305", "waits for room in a pipe that nobody reads from"),
    ("flock", "RW304", "waits for a file lock"),
    ("posix_lock", "RW304", "waits for a file lock"),
    ("fcntl_setlk", "RW304", "waits for a file lock"),
    ("nanosleep", "RW302", "sleeps"),
    ("do_wait", "RW315", "waits for a child process"),
    ("inet_csk_accept", "RW306", "waits for an incoming connection (socket)"),
    ("sk_wait_data", "RW306", "waits for an answer on a network connection (socket)"),
    ("n_tty_read", "RW318", "waits for typed input (breakpoint, input)"),
    ("wait_woken", "RW306", "waits for an answer on a network connection (socket)"),
    ("unix_stream", "RW306", "waits for an answer on a local socket"),
)
_LOOKS = 3


def kernel_wait(rank: RankEvidence) -> tuple[str, str] | None:
    """The cause and the words for a rank that slept in the same kernel function at several looks; None if it did not, or the function says nothing."""
    places = [sample.wchan for sample in rank.samples[-_LOOKS:]]
    if len(places) < _LOOKS or not places[0] or len(set(places)) > 1:
        return None
    return next(((code, doing) for part, code, doing in _WAITS if part in places[0]), None)
