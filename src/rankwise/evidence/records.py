"""The records of evidence: everything that was seen of a job, as frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rankwise.evidence.audit import Audit
from rankwise.evidence.collective_log import CollectiveLog
from rankwise.evidence.stack import Frame as Frame
from rankwise.evidence.stack import Stack as Stack
from rankwise.findings import Finding


@dataclass(frozen=True)
class Thread:
    """One thread's Python stack, as seen from outside."""

    name: str
    frames: Stack
    is_main: bool = False
    owns_gil: bool = False
    is_active: bool = False


@dataclass(frozen=True)
class Call:
    """One call the probe saw: a `torch.distributed` function, a DDP forward, a backward, a batch fetch."""

    op: str
    started_ns: int
    ended_ns: int  # 0 while the call is open
    stack: Stack = ()
    group: str = "0"
    sizes: tuple[int, ...] = ()
    dtype: str = ""
    peer: int | None = None  # src, dst or root, as a global rank
    reduce_op: str = ""  # of a send or recv: its tag; of a forward: no_sync, no_grad, eval, where it is one
    failed: bool = False
    by_helper: bool = False  # made by another thread than the main one: a helper of the user's, or autograd's
    sent: tuple[int, ...] = ()  # of an all_to_all: how many numbers go to each rank of the group
    expected: tuple[int, ...] = ()  # and how many are to come from each

    @property
    def is_open(self) -> bool:
        return self.ended_ns == 0

    @property
    def tag(self) -> str:
        """The tag of a send or recv; empty for the usual one, 0."""
        return "" if self.reduce_op == "0" else self.reduce_op

    @property
    def mode(self) -> tuple[str, ...]:
        """How a forward differs from one of plain training: no_sync, no_grad, eval."""
        return tuple(self.reduce_op.split("+")) if self.op == "forward" else ()


@dataclass(frozen=True)
class Raised:
    """An uncaught exception."""

    type: str
    message: str
    stack: Stack
    time_ns: int
    thread: str = "MainThread"
    text: str = ""  # the traceback as Python prints it
    finding: Finding | None = None  # what an error of rankwise's own holds


@dataclass(frozen=True)
class Caught:
    """An exception of a DataLoader worker that was handed to the rank, and how often so far."""

    type: str
    message: str
    times: int
    time_ns: int
    stack: Stack = ()


@dataclass(frozen=True)
class Ended:
    """How a process ended. kind: finished, exception, sys_exit, os_exit, signal, vanished."""

    kind: str
    time_ns: int
    code: int | None = None
    signal: int | None = None
    stack: Stack = ()
    by: str = ""  # who sent the signal, when it is known
    said: str = ""  # the C++ exception that ended it

    @property
    def crashed_after_its_end(self) -> bool:
        """Whether the process crashed while it exited, after its script had ended with success."""
        return self.kind == "signal" and self.code == 0


@dataclass(frozen=True)
class PortHolder:
    """The process that listens on a port of this host."""

    port: int
    pid: int | None
    name: str
    command: str = ""


@dataclass(frozen=True)
class Init:
    """One call of `init_process_group`."""

    rank: int | None
    world_size: int | None
    backend: str
    method: str  # env://, tcp://…, file://…, store
    address: str
    port: int | None
    timeout_s: float | None
    started_ns: int
    ended_ns: int
    stack: Stack = ()
    error: str = ""
    holder: PortHolder | None = None  # who listens on the port that this rank could not have
    file_mtime: float | None = None  # of a file:// store, before this rank touched it; None if there was none

    @property
    def store_address(self) -> str:
        return self.method[6:].rsplit(":", 1)[0].strip("[]").split("/")[0] if self.method.startswith("tcp://") else self.address

    @property
    def store_port(self) -> int | None:
        if not self.method.startswith("tcp://"):
            return self.port
        tail = self.method.rsplit(":", 1)[-1].split("?")[0].split("/")[0]
        return int(tail) if tail.isdecimal() and len(tail) < 6 else None


@dataclass(frozen=True)
class NewGroup:
    """One call of `new_group`: which ranks it names, and what torch called the group."""

    name: str
    ranks: tuple[int, ...]
    started_ns: int
    ended_ns: int
    stack: Stack = ()


@dataclass(frozen=True)
class Model:
    """What DDP was given on one rank."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    class_file: str = ""
    stack: Stack = ()
    unused: tuple[str, ...] = ()  # names DDP said got no gradient
    replaced: tuple[str, ...] = ()  # names whose parameter is no longer the one DDP wrapped
    added: tuple[str, ...] = ()  # names that were not there when DDP wrapped
    has_buffers: bool = False


@dataclass(frozen=True)
class Sample:
    """The state of one process at one moment, from /proc."""

    time_ns: int
    state: str  # R S D T t Z or "" when it is gone
    cpu_s: float = 0.0
    rss: int = 0
    switches: int = 0  # context switches of the main thread
    read_bytes: int = 0
    written_bytes: int = 0
    swap: int = 0
    wchan: str = ""  # the kernel function that its main thread sleeps in


@dataclass(frozen=True)
class Helper:
    """A process that belongs to a rank or to the launcher: a DataLoader worker, a subprocess, a wrapper script."""

    pid: int
    command: str
    parent: int
    threads: tuple[Thread, ...] = ()
    state: str = ""
    is_python: bool = False
    raised: Raised | None = None
    ended: Ended | None = None
    script: str = ""
    is_dataloader_worker: bool = False


@dataclass(frozen=True)
class OpenConnection:
    """An open connection of a process."""

    local: str
    remote: str
    status: str
    pid: int | None = None  # of the process at the other end, if it is on this host


@dataclass(frozen=True)
class FileLock:
    """A file lock that one process waits for and another holds."""

    path: str
    waiter: int
    holder: int | None


@dataclass(frozen=True)
class SentSignal:
    """A signal that a Python process of the job sent with os.kill, and from which line."""

    by: int
    target: int
    signal: int
    time_ns: int
    stack: Stack = ()


@dataclass(frozen=True)
class RankEvidence:
    """Everything seen of one rank in its latest start."""

    rank: int
    pid: int | None = None
    host: str = ""
    env: dict[str, str] = field(default_factory=dict)
    script: str = ""
    started_ns: int = 0
    alive: bool = True
    torch: str = ""
    inits: tuple[Init, ...] = ()
    groups: tuple[NewGroup, ...] = ()
    models: tuple[Model, ...] = ()
    calls: tuple[Call, ...] = ()
    num_forgotten: int = 0  # number of earlier calls that have left the ring
    collectives: CollectiveLog = field(default_factory=CollectiveLog)
    counts: dict[str, int] = field(default_factory=dict)  # calls by op since the start, also those that left the ring
    threads: tuple[Thread, ...] = ()
    earlier_threads: tuple[Thread, ...] = ()  # the sample before `threads`
    threads_ns: int = 0
    samples: tuple[Sample, ...] = ()
    helpers: tuple[Helper, ...] = ()
    connections: tuple[OpenConnection, ...] = ()
    locks: tuple[FileLock, ...] = ()
    raised: tuple[Raised, ...] = ()
    ended: Ended | None = None
    leaving: Ended | None = None  # how its script ended, while the process is still there (atexit, threads that are joined)
    caught: tuple[Caught, ...] = ()  # exceptions that reached the rank and were caught there
    signals: tuple[SentSignal, ...] = ()  # sent from Python to this process or one below it
    restarts: int = 0
    last_progress_ns: int = 0
    blind: tuple[str, ...] = ()  # what could not be seen, in words
    audit: Audit = field(default_factory=Audit)  # of its training
    glimpses: tuple[Stack, ...] = ()  # where its main thread was now and then, if it kept the others waiting

    @property
    def last_call_ns(self) -> int:
        """When its latest collective, forward or backward began."""
        return next((call.started_ns for call in reversed(self.calls) if call.op not in ("pass_start", "pass_end")), 0)


@dataclass(frozen=True)
class HostFacts:
    """What the watcher found out about its own host when a job did not start."""

    name: str
    unresolved: tuple[str, ...] = ()
    holders: tuple[PortHolder, ...] = ()
    interfaces: tuple[str, ...] = ()
    oom_kills: tuple[dict[str, Any], ...] = ()  # from the kernel log or the cgroup
    shm_free: int | None = None


@dataclass(frozen=True)
class JobEvidence:
    """Everything seen of a job at one moment."""

    command: tuple[str, ...]
    started_ns: int
    now_ns: int
    world_size: int | None
    stall_after_s: float
    ranks: dict[int, RankEvidence]
    duplicates: tuple[RankEvidence, ...] = ()  # further processes that claim a rank already taken
    launchers: tuple[Helper, ...] = ()  # processes of the job that are not ranks
    hosts: tuple[HostFacts, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)  # the user's files that stacks mention
    exit_code: int | None = None  # None while the job runs
    restarts: int = 0
    lost_hosts: tuple[str, ...] = ()  # nodes whose watcher stopped answering
    log_tails: dict[str, str] = field(default_factory=dict)  # the last lines of each log, by name
    launch_style: str = "torchrun"  # or "command"
    cwd: str = ""  # where the job was started
    suspected: tuple[Finding, ...] = ()  # the last findings about a rank that kept the others waiting
    blind: tuple[str, ...] = ()
