"""A farm of ranks: one process imports torch once and forks ranks on request, so that a test pays milliseconds for them, not seconds.

`serve` is that process; `Farm` is its handle. A request names a function; each rank calls it and its result comes back.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

MARK = "PYTEST_LEFTOVER_MARK"  # of tests/conftest.py, which imports more than this process may
ROOT = Path(__file__).parents[2]
JOBS = "tests.train.jobs"


@dataclass(frozen=True)
class Request:
    """Call `function` ("module:name") on so many ranks; without a group where `world_size` is 0."""

    function: str
    world_size: int
    arguments: dict[str, Any]
    folder: Path
    timeout_s: float


@dataclass(frozen=True)
class Outcome:
    """What a rank returned, or the code and the words of the error it raised; the signal that ended it, as a negative number."""

    value: Any = None
    error: str = ""
    code: str | None = None
    status: int = 0
    whole: str = ""  # all that a finding says


class Farm:
    """Starts the farm's process and sends it requests."""

    def __init__(self) -> None:
        env = {
            **{name: value for name, value in os.environ.items() if name != MARK},  # it outlives the file whose test asked first
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), *sys.path]),
        }
        command = [sys.executable, "-c", "from tests.train.farm import serve; serve()"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=ROOT)

    def ranks(self, function: str, world_size: int, *, jobs: str = JOBS, timeout_s: float = 60, **arguments: Any) -> list[Outcome]:
        """What each of the ranks came to."""
        assert self._process.stdin and self._process.stdout
        with tempfile.TemporaryDirectory(prefix="farm-") as name:
            pickle.dump(Request(f"{jobs}:{function}", world_size, arguments, Path(name), timeout_s), self._process.stdin)
            self._process.stdin.flush()
            return list(pickle.load(self._process.stdout))

    def run(self, function: str, world_size: int, **arguments: Any) -> list[Any]:
        """The ranks' results; fails if one of them did."""
        outcomes = self.ranks(function, world_size, **arguments)
        assert not any(outcome.error or outcome.status for outcome in outcomes), outcomes
        return [outcome.value for outcome in outcomes]

    def alone(self, function: str, **arguments: Any) -> Any:
        """The result of one process that has no process group."""
        return self.run(function, 0, **arguments)[0]

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(timeout=120)
        self._process.stdout.close()


def serve() -> None:
    """Answer requests until nobody asks any more. No tensor is touched here: a fork after torch has used its threads would hang."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what ranks print must not get among the answers
    for module in ("torch", "torch._dynamo.utils", "torch.distributed.checkpoint.state_dict", "torch.distributed.optim", JOBS):
        import_module(module)
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(_answer(request), answers)
        answers.flush()


def _answer(request: Request) -> list[Outcome]:
    pids = [_fork(request, rank) for rank in range(max(1, request.world_size))]
    deadline = time.monotonic() + request.timeout_s
    statuses: dict[int, int] = {}
    while len(statuses) < len(pids):
        for pid in set(pids) - statuses.keys():
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                statuses[pid] = os.waitstatus_to_exitcode(status)
                if statuses[pid]:  # as a launcher does, after a moment in which the others may say something
                    deadline = min(deadline, time.monotonic() + 1)
            elif time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    return [_outcome(request.folder / f"rank-{rank}", statuses[pid]) for rank, pid in enumerate(pids)]


def _outcome(path: Path, status: int) -> Outcome:
    return pickle.loads(path.read_bytes()) if path.exists() else Outcome(error=f"ended with {status}", status=status)


def _fork(request: Request, rank: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.environ["TMPDIR"] = tempfile.tempdir = str(request.folder)
        outcome = _call(request, rank)
        partial = request.folder / f"partial-{rank}"
        partial.write_bytes(pickle.dumps(outcome))
        partial.rename(request.folder / f"rank-{rank}")
    finally:
        os._exit(0)


def _call(request: Request, rank: int) -> Outcome:
    import torch.distributed as dist

    from rankwise.errors import RankwiseError

    module, name = request.function.split(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    try:
        if request.world_size:
            store = dist.FileStore(str(request.folder / "store"), request.world_size)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=request.world_size)
            dist.barrier()  # a quick rank must not be gone before all others have connected to it
        value = function(**request.arguments)
        if request.world_size:
            dist.barrier()
        return Outcome(value)
    except RankwiseError as error:
        return Outcome(error=error.finding.summary, code=error.finding.code, whole=str(error))
    except BaseException:
        return Outcome(error=traceback.format_exc())
