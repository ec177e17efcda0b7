"""Fork servers of pools that are there at once: forked from a process that has imported torch, one for all tests of a test worker.

The import takes two seconds, and the tests make about a hundred pools. What is forked runs the fork server's own code from its first line,
as a child of the test's process, with the environment, the folder and the output it would have had. `warm_pools` has the pools of a file of
tests start in this way. A file of tests about the start itself says `STARTS_COLD = True`; `make test-live` starts all pools as users do.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import pickle
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
MARK = "PYTEST_WARM_MARK"  # in the environment the kernel shows of all that is forked here; of their own they have only what Python knows
LEFTOVER_MARK = "PYTEST_LEFTOVER_MARK"  # of tests/conftest.py
# Who reads these does so before the fork: the interpreter, the loader, and torch with its libraries.
READ_EARLY = ("PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "VECLIB_", "MIMALLOC_", "TORCH", "GLIBC_", "MALLOC_")
_PR_SET_CHILD_SUBREAPER = 36
_MESSAGE_BYTES = 1 << 17

_nests: dict[tuple[tuple[str, str], ...], Nest] = {}
_lock = threading.Lock()


@pytest.fixture(scope="module", autouse=True)
def warm_pools(request: pytest.FixtureRequest) -> Iterator[None]:
    from rankwise.pool.workers import fork_server

    if getattr(request.module, "STARTS_COLD", False) or request.config.option.markexpr == "live":
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server, "start_process", _Start(fork_server.start_process))
        yield


class _Start:
    """Stands in for `fork_server.start_process`."""

    def __init__(self, cold: Any) -> None:
        self._cold = cold
        self._usual = _read_early(dict(os.environ), but=_threads())
        self._pid = os.getpid()

    def __call__(self, control: socket.socket, env: dict[str, str]) -> subprocess.Popen[bytes]:
        from rankwise.pool.workers.fork_server import ENVIRONMENT

        is_usual = _read_early(env, but=(*_threads(), *ENVIRONMENT)) == self._usual
        if not is_usual or os.getpid() != self._pid:  # a forked test is not the parent of what would be forked here
            return self._cold(control, env)  # type: ignore[no-any-return]
        with _lock:
            key = _read_early(env)
            if key not in _nests or not _nests[key].is_alive:
                _nests[key] = Nest(env)
            return _nests[key].hatch(control, env)


def _threads() -> tuple[str, ...]:
    from rankwise.pool.schedule.state import THREAD_VARIABLES

    return THREAD_VARIABLES


def _read_early(env: dict[str, str], but: tuple[str, ...] = ()) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in env.items() if name.startswith(READ_EARLY) and name not in but))


class Nest:
    """The handle of a process that has torch imported."""

    def __init__(self, env: dict[str, str]) -> None:
        self.mark = uuid.uuid4().hex
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own = {name: value for name, value in env.items() if name not in (LEFTOVER_MARK, "TMPDIR")}  # it outlives the test that asked first
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        self.process = subprocess.Popen(
            [sys.executable, *flags, "-c", "from tests.warm import serve; serve()", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),), env={**own, MARK: self.mark}, cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        atexit.register(self.close)

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def hatch(self, control: socket.socket, env: dict[str, str]) -> Forked:
        """A new fork server, as a child of this process: it loses its own parent at once, and this one takes it over."""
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            request = pickle.dumps((env, os.getcwd(), sys.path))
            socket.send_fds(self._socket, [request], [control.fileno(), 1, 2])
            return Forked(int(self._socket.recv(64)))
        finally:
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)

    def close(self) -> None:
        self._socket.close()
        self.process.wait(20)


class Forked(subprocess.Popen[bytes]):
    """A child of this process that it did not start with Popen, to wait for and to end like one that it did."""

    def __init__(self, pid: int) -> None:
        self.args, self.pid, self.returncode = ["fork server"], pid, None
        self.stdin = self.stdout = self.stderr = None
        self._child_created, self._waitpid_lock, self._sigint_wait_secs = True, threading.Lock(), 0.25


def nests() -> dict[str, int]:
    """For the guard of leftovers: mark → process of every nest, which may stay; what else has that mark was forked there."""
    return {nest.mark: nest.process.pid for nest in _nests.values()}


def serve() -> None:
    """The process that imports torch and forks until nobody asks any more. No tensor is touched here: its threads would not survive."""
    import torch  # noqa: F401

    import rankwise.pool.workers.worker  # noqa: F401

    asked = socket.socket(fileno=int(sys.argv[1]))
    while True:
        request, fds, _, _ = socket.recv_fds(asked, _MESSAGE_BYTES, 3)
        if not request:
            return
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                os.close(told)
                os.close(tell)
                asked.close()
                _become_fork_server(*pickle.loads(request), *fds)
            os.write(tell, str(child).encode())
            os._exit(0)
        os.close(tell)
        os.waitpid(between, 0)  # from here on the child is the test's
        asked.send(os.read(told, 64))
        for fd in (told, *fds):
            os.close(fd)


def _become_fork_server(env: dict[str, str], folder: str, path: list[str], control: int, stdout: int, stderr: int) -> None:
    from rankwise.pool.workers.fork_server import main

    try:
        os.setsid()
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.close(stdout)
        os.close(stderr)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(env)
        sys.path[:] = path
        sys.argv[1:] = [str(control)]
        main()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)
