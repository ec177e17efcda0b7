"""The fork server: a process that imports torch once and then only forks workers, which start in milliseconds and share its memory.

Both ends are here: `ForkServer` is the pool's, `main` and `Forker` run in the fork server itself. A fork after
torch has run an operation with threads hangs the child, so the fork server never runs one. The kernel may kill it at any time when memory
runs out, or the user may. Then the pool starts it again, with growing pauses; tasks wait meanwhile, or miss their deadline."""

from __future__ import annotations

import fcntl
import gc
import io
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from rankwise.pool.schedule.state import THREAD_VARIABLES
from rankwise.pool.transport.connection import Receiver, WorkerHandle, pair, send

_PAUSES_S = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
UNMADE_FROM = 6  # pauses begin at 5 s for a worker that could not be made: files and memory do not come back sooner
UNBORN_FROM = 2  # they begin at 0.2 s for one that could not be forked: processes come and go
# torch brings mimalloc on some machines, and there is no other way to tell it how long to keep memory (milliseconds, as `KEPT_S` in
# model_building.py); read when torch is loaded.
ENVIRONMENT = {"MIMALLOC_PURGE_DELAY": "1000", "MIMALLOC_ARENA_PURGE_MULT": "1"}


def pause_s(failures: int) -> float:
    """How long to wait before the next attempt, after so many failures in a row."""
    return _PAUSES_S[min(failures, len(_PAUSES_S)) - 1] if failures else 0.0


class ForkServer:
    """The pool's end of the fork server: starts the process, and asks it for workers."""

    def __init__(self, threads: int) -> None:
        self.control, theirs = pair()
        self.receiver = Receiver(self.control)
        self.is_ready = False
        self.complaint = ""  # why it could not get ready
        env = {**ENVIRONMENT, **os.environ, **{name: str(threads) for name in THREAD_VARIABLES}}
        self.process = start_process(theirs, env)
        theirs.close()

    def ask_for(self, handle: WorkerHandle, soft_limit: int, seed: int) -> None:
        seat = handle.seat
        orders = {
            "number": handle.number,
            "env": seat.env,
            "cpus": seat.cpus,
            "threads": seat.threads,
            "soft_limit": soft_limit,
            "seed": seed,
        }
        send(self.control, ("spawn", orders), handle.fds, wait=True)
        handle.given_away()

    def close(self) -> None:
        """End the process and all workers below it, by closing the socket."""
        try:
            self.control.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.control.close()
        self.receiver.close()
        if not self.is_ready:  # it is busy importing, and would look at the socket only when that is over
            self.process.kill()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


# With the caller's sys.path, not only its environment: a new interpreter might find another rankwise or torch first.
_START = "import sys; sys.path[:] = {path}; from rankwise.pool.workers.fork_server import main; main()"


def start_process(control: socket.socket, env: dict[str, str]) -> subprocess.Popen[bytes]:
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return subprocess.Popen(
        [sys.executable, *flags, "-c", _START.format(path=[folder for folder in sys.path if type(folder) is str]), str(control.fileno())],
        pass_fds=(control.fileno(),),
        env=env,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the user's program, which then closes the pool
    )


_LONGEST = 20_000  # characters of a traceback


def main() -> None:
    """Run the fork server. Its one argument is the descriptor of its control socket; when that closes, it ends all workers."""
    control = socket.socket(fileno=int(sys.argv[1]))
    _open_standard_streams()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, as the caller may do, the kernel would not say how a worker ended
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # if it were ignored, processes that models have started would not end with the pool
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the same if it were blocked
    forker = Forker(control)
    try:
        import torch  # noqa: F401  (before the first fork, so that all workers share it)

        import rankwise.pool.workers.worker  # noqa: F401  (the same)
    except BaseException:
        forker.tell(("failed", traceback.format_exc()[-_LONGEST:]))
        raise
    gc.collect()
    gc.freeze()  # so that a garbage collection in a worker does not write to the pages it shares
    forker.tell(("ready", os.getpid(), len(os.listdir("/proc/self/task"))))
    forker.serve()


def _open_standard_streams() -> None:
    """Open descriptors 0 to 2 if the caller has closed one (`>&-`): else C code that prints would write into a worker's socket."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    if isinstance(sys.stdout, io.TextIOWrapper):  # models may print into a file or a pipe, and workers end without flushing it
        sys.stdout.reconfigure(line_buffering=True)


class Forker:
    """Forks a worker on request, reports the end of each worker, and ends all workers when it ends itself."""

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
        try:
            pid = os.fork()
        except OSError as error:  # no more processes, or no memory: the workers that exist go on
            for fd in fds:
                os.close(fd)
            self.tell(("unborn", orders["number"], str(error)))
            return
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
        if os.getpgrp() == os.getpid():  # ends processes that models have started and that have no group or session of their own
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(0, signal.SIGTERM)
        os._exit(0)


def become_worker(orders: dict[str, Any], fds: list[int]) -> None:
    from rankwise.pool.workers.worker import serve

    die_with_parent(fds.pop())
    os.environ.update(orders["env"])
    if orders["cpus"]:
        os.sched_setaffinity(0, orders["cpus"])
    try:  # when memory runs out, the kernel should end a worker rather than the program that waits for it
        Path("/proc/self/oom_score_adj").write_text("500")
    except OSError:
        pass
    gc.enable()
    serve(orders, fds)


def die_with_parent(parent_pipe: int) -> None:
    """Have the kernel kill this process when the pool's process ends, even while no Python code can run here.

    The pool's process holds the other end of the pipe and never writes to it, so the pipe closes when that process ends, even if the fork
    server has ended before."""
    fcntl.fcntl(parent_pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(parent_pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(parent_pipe, fcntl.F_SETFL, fcntl.fcntl(parent_pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([parent_pipe], [], [], 0)[0]:  # it was closed already
        os._exit(1)
