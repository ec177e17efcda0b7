"""`spawn()`: starts the ranks of a job on this machine, brings back what they return, and ends all of them when one fails."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil

from rankwise.causes import load_cause
from rankwise.errors import RankwiseError, UsageError, WorkerError, headline
from rankwise.findings import Finding, Place, ranks_text, signal_name

log = logging.getLogger("rankwise.train")

_END_GRACE_S = 5.0
_LEAVE_S = 300.0
_SETTLE_S = 1.0
_LOOK_EVERY_S = 1.0  # between two looks for workers that are gone
_ECHO_SETTLE_S = 5.0  # how long to wait for the cause while all known errors are broken connections
_ECHOES = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "gloo/transport",
    "ncclremoteerror",
    "nccl error: remote",
)
_NO_GUARD_CODE = 97
_SPAWNED = "RANKWISE_SPAWNED"  # set in workers, to tell a script without the guard from a worker that spawns on purpose
_PR_SET_PDEATHSIG = 1
_starting = threading.Lock()  # a worker inherits this process's environment, which all threads share
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


def spawn(fn: Callable[..., Any], nproc: int, *args: Any) -> list[Any]:
    """Run `fn(*args)` in `nproc` new processes, each with the environment `session()` reads; returns their results in rank order.

    The first failure ends the others and is raised here as WorkerError, with that worker's traceback.
    """
    if not isinstance(nproc, int) or isinstance(nproc, bool) or nproc < 1:
        raise UsageError(f"nproc must be a whole number of at least 1, not {nproc!r}", next=("rankwise.spawn(train, 2)",))
    if getattr(multiprocessing.current_process(), "_inheriting", False) and _SPAWNED in os.environ:
        raise SystemExit(_NO_GUARD_CODE)  # without a message, because the process that started this one raises the error
    _check_can_be_found(fn)
    work = pickled(fn, args)
    store = _open_store()
    workers: list[RankProcess] = []
    families: list[psutil.Process] = []
    with _hearing_of_children():
        try:
            for rank in range(nproc):
                workers.append(_start(rank, nproc, int(store.port)))
            for worker in workers:
                with contextlib.suppress(OSError):  # the worker has ended already; how is seen below
                    worker.pipe.send_bytes(work)
            results = _results(workers)
            families = _families(workers)
            _let_leave(workers)
            return results
        finally:
            _end(workers, families + _families(workers))


@contextlib.contextmanager
def _hearing_of_children() -> Iterator[None]:
    """Reset SIGCHLD if this process ignores it, as some daemons do by inheritance: otherwise nothing tells how its children end."""
    if signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # Python refuses this outside of the main thread
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)


@dataclass
class RankProcess:
    """One rank's process, and the pipe on which it sends its result or error."""

    rank: int
    process: multiprocessing.process.BaseProcess
    pipe: multiprocessing.connection.Connection


def _check_can_be_found(fn: Callable[..., Any]) -> None:
    """Raise if workers could not find `fn`: each runs the main module again, which is impossible for `-c`, a notebook or a package."""
    main = sys.modules["__main__"]
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    is_input = spec is None and path is not None and not os.path.isfile(path)  # multiprocessing would look for a file called <stdin>
    is_found = not spec.name.endswith("__main__") if spec is not None else path is not None
    if is_input or (not is_found and getattr(fn, "__module__", None) == "__main__"):
        raise UsageError(
            f"a new process cannot find {getattr(fn, '__qualname__', fn)}: this program is not a file that it could run again",
            why="it is standard input, `python -c`, a notebook, or the __main__ of a package",
            next=("put the function into a module and import it from there, in a program that is a file",),
        )


def pickled(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """The function and its arguments as a pickle, which a lambda, or a function inside a function, cannot be in.

    Pickled here, because multiprocessing would move tensors into shared memory, where all ranks' optimizers would change the same ones.
    """
    try:
        return pickle.dumps((fn, args))
    except Exception as error:
        raise UsageError(
            f"{getattr(fn, '__qualname__', fn)} cannot be given to a new process: {error}",
            next=("define the function at the top level of a module, and pass plain data",),
        ) from None


def _open_store() -> Any:
    """Open the store of the job here, so that it outlives the workers; on loopback only, on a free port."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # late: a worker may do without torch

    ear = socket.socket()
    ear.bind(("127.0.0.1", 0))
    ear.listen(4096)
    return TCPStore("127.0.0.1", ear.getsockname()[1], is_master=True, wait_for_workers=False, master_listen_fd=ear.detach())


def _start(rank: int, nproc: int, port: int) -> RankProcess:
    """Start a worker. It gets its work by the pipe: as an argument, a worker that ended while importing the script would block us."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, os.getpid()), name=f"rank-{rank}")
    with _starting, _environment(rank, nproc, port):
        process.start()
    theirs.close()
    return RankProcess(rank, process, ours)


@contextlib.contextmanager
def _environment(rank: int, nproc: int, port: int) -> Iterator[None]:
    """Set what a worker needs from its first moment, because torch reads some of it while the user's module is imported."""
    wanted = {
        "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": nproc, "LOCAL_WORLD_SIZE": nproc, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": True, _SPAWNED: os.getpid(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or max(1, len(os.sched_getaffinity(0)) // nproc),
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update({name: str(value) for name, value in wanted.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _work(pipe: Any, parent: int) -> None:
    """Run the function in the worker and send the outcome; a traceback is sent, not printed, because only the first one matters."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    own = os.getpid()
    try:
        fn, args = pickle.loads(pipe.recv_bytes())
        result: tuple[Any, ...] = ("returned", fn(*args))
    except BaseException as error:
        finding = error.finding.to_dict() if isinstance(error, RankwiseError) else None
        text = "".join(traceback.format_exception(error))
        code = error.code if isinstance(error, SystemExit) else 1
        failed_at = getattr(error, "_rankwise_failed_at", time.monotonic())  # before the session ends, which fails the others
        result = ("returned", None) if code in (0, None) else ("raised", text, finding, failed_at)
    if os.getpid() != own:  # a child that `fn` forked has returned too, but a rank has one result, the worker's
        os.write(
            2, f"rankwise: a process that rank {os.environ.get('RANK')} had forked came back from its function, and was ended\n".encode()
        )
        os._exit(1)
    with contextlib.suppress(Exception):  # standard output may be missing, as under a daemon, or not be read by any process
        sys.stdout.flush()
    try:
        # the values themselves: multiprocessing would send tensors as handles, which are worth nothing once this process has ended
        data = pickle.dumps(result)
    except Exception as error:
        text = f"{type(error).__name__}: the result of rank {os.environ.get('RANK')} cannot be sent back: {error}"
        result = ("raised", text, None, time.monotonic())
        data = pickle.dumps(result)
    pipe.send_bytes(data)
    pipe.close()
    if result[0] == "raised":
        sys.exit(1)


def _results(workers: list[RankProcess]) -> list[Any]:
    """Wait for all workers. The failure that happened first counts, not the one that is heard first. A broken connection is never the first
    failure: the process at its other end failed before, and the end of a process is seen by its peers before it is seen here."""
    results: dict[int, Any] = {}
    failures: list[tuple[float, RankProcess, str, Any]] = []
    waiting: dict[Any, RankProcess] = {worker.pipe: worker for worker in workers}
    patience_s: float | None = None  # how long to wait for further reports
    while waiting:
        ready = multiprocessing.connection.wait(list(waiting), patience_s or _LOOK_EVERY_S)
        if not ready and patience_s is not None:
            break
        for pipe in ready or _ended(waiting):
            worker = waiting.pop(pipe)
            kind, value, *rest = _message_of(worker)
            if kind == "raised":
                failures.append((rest[1], worker, value, rest[0]))
            else:
                results[worker.rank] = value
        if failures:
            patience_s = _ECHO_SETTLE_S if all(_is_echo(text) for _, _, text, _ in failures) else _SETTLE_S
    if failures:
        _, worker, text, finding = min(failures, key=lambda failure: (_is_echo(failure[2]), failure[0]))
        raise WorkerError(_failure(worker, text, finding, sorted(results)), text)
    return [results[worker.rank] for worker in workers]


def _ended(waiting: dict[Any, RankProcess]) -> list[Any]:
    """The pipes of workers that are gone. Such a pipe stays open while a process that the worker forked lives."""
    return [pipe for pipe, worker in waiting.items() if worker.process.exitcode is not None]


def _is_echo(text: str) -> bool:
    return bool(text) and any(word in headline(text).lower() for word in _ECHOES)


def _message_of(worker: RankProcess) -> tuple[Any, ...]:
    try:
        if not worker.pipe.poll():
            raise EOFError
        data = worker.pipe.recv_bytes()
    except (EOFError, OSError):
        ended_at = time.monotonic()
        worker.process.join(_END_GRACE_S)
        if worker.process.exitcode == _NO_GUARD_CODE:
            raise UsageError(
                "spawn() was called again while a worker imported your script",
                why="each worker is a new Python that imports the main script; a call that is not under the guard runs there too",
                next=('put the call under: if __name__ == "__main__":',),
            ) from None
        return "raised", "", None, ended_at
    try:
        return tuple(pickle.loads(data))
    except Exception as error:  # the classes of the user's result may raise anything
        text = f"the result of rank {worker.rank} cannot be read back: {type(error).__name__}: {error}"
        return "raised", text, None, time.monotonic()


def _failure(worker: RankProcess, text: str, finding: dict[str, Any] | None, returned: list[int]) -> Finding:
    """`returned` are the ranks that ended well: this rank's collectives cannot end without them. Their order in time is not known."""
    if finding is not None:
        return Finding.from_dict(finding)
    place = Place(rank=worker.rank, host=socket.gethostname(), pid=worker.process.pid)
    if text:
        last = headline(text)
        why = f"{ranks_text(returned)} returned without an error" if returned else ""
        why += f"; if rank {worker.rank} still had a collective to make with it, that is the cause" if returned else ""
        return load_cause("RW401").finding(f"rank {worker.rank} raised {last[:300]}", certain=True, why=why, culprits=(place,))
    code = worker.process.exitcode
    if code is None:
        cause, how = "RW402", "closed its connection and was still running"
    elif code < 0:
        cause, how = "RW405" if -code in _CRASHES else "RW403", f"ended by signal {signal_name(-code).removeprefix('signal ')}"
    else:
        cause, how = "RW402", f"ended with exit code {code}"
    return load_cause(cause).finding(
        f"rank {worker.rank} (pid {worker.process.pid}) {how} without saying why", certain=True, culprits=(place,)
    )


def _let_leave(workers: list[RankProcess]) -> None:
    """All ranks have returned. Let their threads and exit handlers finish what they still write (a checkpoint, a log)."""
    deadline = time.monotonic() + _LEAVE_S
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            log.warning("rank %d returned, but its threads or exit handlers did not end within %.0f s; it was ended", worker.rank, _LEAVE_S)


def _end(workers: list[RankProcess], families: list[psutil.Process]) -> None:
    """End all workers, first by SIGTERM, then by SIGKILL, together with all processes that they started."""
    for worker in workers:
        if worker.process.is_alive():
            worker.process.terminate()
    deadline = time.monotonic() + _END_GRACE_S
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
    for process in families:
        with contextlib.suppress(psutil.Error):
            process.kill()
    for worker in workers:
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        worker.process.close()


def _families(workers: list[RankProcess]) -> list[psutil.Process]:
    """The processes that running workers have started. A worker that has ended is skipped: its pid may belong to another process by now."""
    found: list[psutil.Process] = []
    for worker in [worker for worker in workers if worker.process.is_alive()]:
        with contextlib.suppress(psutil.Error):
            found += psutil.Process(worker.process.pid).children(recursive=True)
    return found
