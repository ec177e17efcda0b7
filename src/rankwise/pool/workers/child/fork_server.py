"""A process that imports torch once and then only forks: workers start in milliseconds and share its memory.

Forking after torch has run an operation with threads hangs the child. This process never runs one, and says how many threads it has.
Started by `workers/starting.py` with one argument, the descriptor of its control socket. When that socket closes, everything below it ends.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from rankwise.pool.transport.connection import Receiver, send

_LONGEST = 20_000  # characters of a traceback


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forker = Forker(control)
    try:
        import torch  # noqa: F401  (before the first fork, so that all workers share it)

        import rankwise.pool.workers.child.worker  # noqa: F401  (the same)
    except BaseException:
        forker.tell(("failed", traceback.format_exc()[-_LONGEST:]))
        raise
    gc.collect()
    gc.freeze()  # what is here stays: a collection in a worker need not write to the pages it shares
    forker.tell(("ready", os.getpid(), len(os.listdir("/proc/self/task"))))
    forker.serve()


class Forker:
    """Forks on request, reports the end of each worker, and ends all of them at its own end."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._receiver = Receiver(control)
        self._children: dict[int, int] = {}  # pid: pidfd

    def serve(self) -> None:
        while True:
            poll = select.poll()
            poll.register(self._control, select.POLLIN)
            for pidfd in self._children.values():
                poll.register(pidfd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll()}
            self._reap([pid for pid, pidfd in self._children.items() if pidfd in ready])
            if self._control.fileno() in ready:
                message = self._receiver.receive(wait=True)
                if message is None:
                    self._end()
                else:
                    self._fork(message[1])

    def _fork(self, orders: dict[str, Any]) -> None:
        fds, self._receiver.fds = self._receiver.fds, []
        pid = os.fork()
        if pid == 0:
            try:
                self._control.close()
                for pidfd in self._children.values():
                    os.close(pidfd)
                become_worker(orders, fds)
            except ConnectionError:  # the parent is gone
                pass
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(1)
        self._children[pid] = os.pidfd_open(pid)
        for fd in fds:
            os.close(fd)
        self.tell(("born", orders["number"], pid))

    def _reap(self, pids: list[int]) -> None:
        for pid in pids:
            _, status = os.waitpid(pid, 0)
            os.close(self._children.pop(pid))
            self.tell(("ended", pid, os.waitstatus_to_exitcode(status)))

    def tell(self, message: tuple[Any, ...]) -> None:
        try:
            send(self._control, message, wait=True)
        except OSError:
            self._end()

    def _end(self) -> None:
        for pidfd in self._children.values():
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)
        os._exit(0)


def become_worker(orders: dict[str, Any], fds: list[int]) -> None:
    from rankwise.pool.workers.child.worker import serve

    hang_on_to(fds.pop())
    os.environ.update(orders["env"])
    if orders["cpus"]:
        os.sched_setaffinity(0, orders["cpus"])
    try:  # where memory runs out, the kernel should take a worker rather than the program that waits for it
        Path("/proc/self/oom_score_adj").write_text("500")
    except OSError:
        pass
    gc.enable()
    serve(orders, fds)


def hang_on_to(life_line: int) -> None:
    """The kernel ends this process when the pool's does, and also when it does not get to run any Python: the other end of a pipe, on
    which nothing is ever written, is closed then. The process that this one was forked from may be gone by that time."""
    fcntl.fcntl(life_line, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life_line, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life_line, fcntl.F_SETFL, fcntl.fcntl(life_line, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([life_line], [], [], 0)[0]:  # it was closed before
        os._exit(1)


if __name__ == "__main__":
    main()
