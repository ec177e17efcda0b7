"""What every test gets: a guard against leftovers, a free port, and a way to run the tool as users do."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import ports

try:
    import hypothesis
except ImportError:  # a machine with a GPU may have only what tests/gpu needs
    pass
else:  # a loaded machine is slow, which says nothing about the code
    hypothesis.settings.register_profile("rankwise", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
    hypothesis.settings.load_profile("rankwise")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts it so with `&`, and all that tests interrupt would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Every process a test starts inherits this variable, so it is found again even after its parents are gone.
MARK = "PYTEST_LEFTOVER_MARK"
RUN_MARK = "PYTEST_RUN_MARK"  # the same for one run of the tool
SETTLE_S = 3.0  # how long what is on its way out may take
SHARED_FOLDERS = (Path("/tmp"), Path("/dev/shm"))
NAMESPACES = Path("/run/netns")


@dataclass(frozen=True)
class Ran:
    """One finished run of the tool."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    verdict: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        return self.stdout + self.stderr

    @property
    def codes(self) -> list[str]:
        """The codes of the verdict's findings, root cause first."""
        return [finding["code"] for finding in (self.verdict or {}).get("findings", ())]


@pytest.fixture
def run_rankwise() -> Callable[..., Ran]:
    """Runs `python -m rankwise ARGS…`; `--out DIR` among them brings the verdict along."""

    def run(*args: str | Path, timeout_s: float = 90, env: dict[str, str] | None = None, cwd: Path | None = None) -> Ran:
        command = [sys.executable, "-m", "rankwise", *map(str, args)]
        started = time.monotonic()
        mark = uuid.uuid4().hex
        whole = {**os.environ, **(env or {}), RUN_MARK: mark}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=whole, cwd=cwd)
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            # Whatever the tool started holds the pipes open as well, so all of it has to go before they can be read.
            kill(marked_processes(mark, RUN_MARK))
            stdout, stderr = process.communicate()
            pytest.fail(f"{' '.join(command)}\ndid not end within {timeout_s:g} s\n{_text(stdout)}\n{_text(stderr)}")
        return Ran(process.returncode, _text(stdout), _text(stderr), time.monotonic() - started, _verdict(args, cwd))

    return run


@pytest.fixture
def free_port() -> int:
    return ports.free_port()


@pytest.fixture(scope="module", autouse=True)
def leaves_nothing_behind() -> Iterator[str]:
    """Fails a file of tests that leaves a process, a listening port, a network namespace or shared memory of ours behind.

    Once per file, because looking costs more than most tests do. What a file's own fixtures started is looked for as well.
    """
    mark = uuid.uuid4().hex
    before = Before(own_listening_ports(), shared_files(), namespaces())
    with environment_with(MARK, mark):
        yield mark
    leftovers = settled(lambda: _leftovers(mark, before))
    kill([*marked_processes(mark), *warm_processes()])
    if leftovers:
        pytest.fail("this file's tests left behind:\n  " + "\n  ".join(leftovers), pytrace=False)


@pytest.fixture(autouse=True)
def own_temporary_folder() -> Iterator[Path]:
    """Where this test, and what it starts, keep temporary files; fails a test that leaves one of ours there."""
    # Short, because unix sockets live below it and their paths may not exceed 107 characters.
    folder = Path("/tmp") / f"rwt-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    try:
        with environment_with("TMPDIR", str(folder)):
            yield folder
        leftovers = settled(lambda: [f"file {path}" for path in sorted(folder.glob("rankwise*"))])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if leftovers:
        pytest.fail("left behind:\n  " + "\n  ".join(leftovers), pytrace=False)


@pytest.fixture(scope="session", autouse=True)
def folder_of_all_temporary_paths(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Made before the first test has a temporary folder of its own, or it would be made inside of that, and go with it."""
    tmp_path_factory.getbasetemp()


@contextmanager
def environment_with(name: str, value: str) -> Iterator[None]:
    outer = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if outer is not None:
            os.environ[name] = outer


@dataclass(frozen=True)
class Before:
    """What was there when the file's first test began."""

    ports: set[int]
    files: set[Path]
    namespaces: set[str]


def _leftovers(mark: str, before: Before) -> list[str]:
    found = [f"process {describe(process)}" for process in [*marked_processes(mark), *warm_processes()]]
    found += [f"listening port {port}" for port in sorted(own_listening_ports() - before.ports)]
    # Other tests, and other people, run jobs at the same time: what a living process still refers to is theirs.
    found += [f"file {path}" for path in sorted(shared_files() - before.files) if not is_in_use(path)]
    found += [f"network namespace {name}" for name in sorted(namespaces() - before.namespaces)]
    return found


def settled(look: Callable[[], list[str]]) -> list[str]:
    """What `look` still finds once things had a moment to go away."""
    deadline = time.monotonic() + SETTLE_S
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def marked_processes(mark: str, name: str = MARK) -> list[psutil.Process]:
    """The living processes that were started under this mark, however far they have moved from us."""
    wanted = f"{name}={mark}".encode()
    found = []
    for pid, environment in environments():
        if wanted in environment and pid != os.getpid():
            try:
                found.append(psutil.Process(pid))
            except psutil.NoSuchProcess:
                pass
    return found


def warm_processes() -> list[psutil.Process]:
    """The living processes of pools that were forked from one of ours, and not started."""
    warm = sys.modules.get("tests.warm")
    nests = warm.nests() if warm else {}
    return [process for mark, nest in nests.items() for process in marked_processes(mark, warm.MARK) if process.pid != nest]


def is_in_use(path: Path) -> bool:
    """Whether a living process was told of this path, or listens at a socket below it."""
    wanted = str(path).encode()
    return wanted in Path("/proc/net/unix").read_bytes() or any(wanted in environment for _, environment in environments())


def environments() -> Iterator[tuple[int, bytes]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                yield int(folder.name), (folder / "environ").read_bytes()
            except OSError:  # gone, or somebody else's
                pass


def kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.Error:
            pass
    psutil.wait_procs(processes, timeout=SETTLE_S)


def describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.status()} {' '.join(process.cmdline()) or process.name()}"
    except psutil.Error:
        return f"{process.pid} (gone)"


def own_listening_ports() -> set[int]:
    """Ports this very process listens on; another process's port goes away with the process."""
    connections = psutil.Process().net_connections(kind="inet")
    return {connection.laddr.port for connection in connections if connection.status == psutil.CONN_LISTEN}


def shared_files() -> set[Path]:
    return {path for folder in SHARED_FOLDERS if folder.is_dir() for path in folder.glob("rankwise*")}


def namespaces() -> set[str]:
    """Those of this process's own labs: other test runs build theirs at the same time."""
    return {path.name for path in NAMESPACES.glob(f"rankwise-test-{os.getpid()}-*")}


def _verdict(args: tuple[str | Path, ...], cwd: Path | None) -> dict[str, Any] | None:
    words = [str(arg) for arg in args]
    if "--out" not in words[:-1]:
        return None
    path = Path(cwd or ".") / words[words.index("--out") + 1] / "verdict.json"
    return json.loads(path.read_text()) if path.is_file() else None


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
