"""Evidence that makes no sense but has the right types: what a damaged, hostile or simply unforeseen run folder may hold."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from rankwise.evidence.collective_log import ORIGINS, CollectiveLog, Signature
from rankwise.evidence.records import (
    Call,
    Ended,
    FileLock,
    Frame,
    Helper,
    HostFacts,
    Init,
    JobEvidence,
    Model,
    NewGroup,
    OpenConnection,
    PortHolder,
    Raised,
    RankEvidence,
    Sample,
    SentSignal,
    Stack,
    Thread,
)
from tests.diagnose.jobs import HOME, NOW_NS, PYTHON, SECOND, START_NS, TORCH, joined

LOADER = f"{TORCH}/utils/data/dataloader.py"
FILES = ["train.py", f"{HOME}/train.py", f"{TORCH}/x.py", LOADER, f"{PYTHON}/queue.py", "<string>", "", "\udce9"]
FUNCTIONS = ["main", "wait", "_next_data", "rank_zero_only", "join", "<module>", ""]
WORDS = ["", "0", "1", "x", "all_reduce", "localhost", "node-a", "eth0"]
OPS = [
    "all_reduce",
    "broadcast",
    "barrier",
    "send",
    "recv",
    "isend",
    "irecv",
    "batch_isend_irecv",
    "new_group",
    "monitored_barrier",
    "destroy_process_group",
    "forward",
    "backward",
    "ddp",
    "all_gather_object",
    "init_process_group",
    "next_batch",
    "end_of_data",
    "unheard_of",
]
ERRORS = [
    "",
    "bad\nsample",
    "Connection closed by peer",
    "gloo: timed out",
    "Expected to have finished reduction in the prior iteration",
    "DataLoader worker (pid(s) 1, 2) exited unexpectedly",
    "DataLoader worker (pid , ) is killed by signal: Killed",
    "params appears not to match",
    "EADDRINUSE",
    "out of memory",
    "Missing key(s) in state_dict: module.w",
    f'Original Traceback\n  File "/a.py", line {"9" * 5000}, in f\n',
    f"DataLoader worker (pid {'9' * 5000}) is killed by signal: Killed",
]
TYPES = ["ValueError", "RuntimeError", "MemoryError", "KeyboardInterrupt", "torch.distributed.DistNetworkError", ""]
METHODS = [
    "env://",
    "tcp://a:1",
    "tcp://",
    "tcp://[::1]:x?rank=1",
    "tcp://a:99999999999999999999",
    "tcp://a:²",
    "file:///x",
    "file://",
    "store",
    "",
]
SOURCES = [
    "",
    "def main(:\n",
    "RANK=1\n",
    "def main():\n    if rank == 0:\n        x()\n    for a in b:\n        if c: continue\n        y()\n    z()\n",
    "if " + "not " * 600 + "rank:\n    x()\n",
]


class Chaos:
    """Draws every part of a job at random."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def pick(self, *values: Any) -> Any:
        return self.random.choice(values)

    def some(self, make: Callable[[], Any], most: int = 2) -> tuple[Any, ...]:
        return tuple(make() for _ in range(self.random.randint(0, most)))

    def maybe(self, make: Callable[[], Any]) -> Any:
        return make() if self.random.random() < 0.5 else None

    def word(self) -> str:
        return self.pick(*WORDS)

    def small(self) -> int:
        return self.random.randint(0, 6)

    def rank_number(self) -> int:
        return self.random.randint(-1, 6)

    def number(self) -> int | None:
        return self.pick(None, -1, 0, 1, 6, 9, 11, 15, 40, 4200, 4201, 10**20)

    def time(self) -> int:
        return self.pick(0, 1, START_NS, NOW_NS - 20 * SECOND, NOW_NS - SECOND, NOW_NS, NOW_NS + SECOND)

    def stack(self) -> Stack:
        return self.some(lambda: Frame(self.pick(*FILES), self.random.randint(-1, 12), self.pick(*FUNCTIONS)), 3)

    def sizes(self) -> tuple[int, ...]:
        return self.some(self.small, 3)

    def end(self) -> Ended:
        kind = self.pick("finished", "exception", "sys_exit", "os_exit", "signal", "vanished", "unheard of")
        return Ended(kind, self.time(), self.number(), self.number(), self.stack(), self.word())

    def raised(self) -> Raised:
        return Raised(self.pick(*TYPES), self.pick(*ERRORS), self.stack(), self.time(), self.pick("MainThread", "MainThread", "uploader"))

    def thread(self) -> Thread:
        return Thread(self.word(), self.stack(), self.pick(True, False), self.pick(True, False), self.pick(True, False))

    def holder(self) -> PortHolder:
        return PortHolder(self.small(), self.number(), self.word(), self.word())

    def init(self) -> Init:
        return Init(
            self.maybe(self.rank_number),
            self.maybe(self.small),
            self.pick("gloo", "nccl", ""),
            self.pick(*METHODS),
            self.word(),
            self.number(),
            None,
            self.time(),
            self.pick(0, self.time()),
            self.stack(),
            self.pick(*ERRORS),
            self.maybe(self.holder),
            self.pick(None, None, 0.0, START_NS / 1e9, 1e300),
        )

    def group(self) -> NewGroup:
        return NewGroup(self.pick("0", "1", "2", ""), self.some(self.rank_number, 3), self.time(), self.time(), self.stack())

    def model(self) -> Model:
        return Model(
            self.some(lambda: self.pick("a.w", "b", ""), 3),
            self.some(self.sizes, 3),
            self.some(self.word, 3),
            self.pick(*FILES),
            self.stack(),
            self.some(self.word),
            self.some(self.word),
            self.some(self.word),
        )

    def call(self) -> Call:
        return Call(
            self.pick(*OPS),
            self.time(),
            self.pick(0, self.time()),
            self.stack(),
            self.pick("0", "0", "1", "none"),
            self.sizes(),
            self.word(),
            self.maybe(self.rank_number),
            self.word(),
            self.pick(True, False),
        )

    def log(self) -> CollectiveLog:
        log = CollectiveLog(is_partial=self.pick(True, False))
        for _ in range(self.small()):
            what = Signature(
                self.pick("0", "0", "1", ""), self.pick(*OPS), self.sizes(), self.word(), self.maybe(self.rank_number), self.word()
            )
            log.add(self.small(), what, self.time(), self.pick(True, False), self.stack(), self.pick(*ORIGINS))
        return log

    def helper(self) -> Helper:
        return Helper(
            self.small(),
            self.word(),
            self.pick(0, 4200, 4201),
            self.some(self.thread),
            self.pick("", "S", "T", "Z"),
            self.pick(True, False),
            self.maybe(self.raised),
            self.maybe(self.end),
            self.pick(*FILES),
            self.pick(True, False),
        )

    def sample(self) -> Sample:
        return Sample(self.time(), self.pick("R", "S", "D", "T", ""), self.random.uniform(0, 99), *(self.small() for _ in range(4)))

    def rank(self, number: int) -> RankEvidence:
        return RankEvidence(
            number,
            self.pick(4200 + number, None),
            self.pick("", "node-a", "node-b"),
            {self.pick("RANK", "LOCAL_RANK", "GLOO_SOCKET_IFNAME", "TORCH_DISTRIBUTED_DEBUG"): self.word()},
            self.pick(*FILES),
            self.time(),
            self.pick(True, True, False),
            inits=(*self.some(self.init, self.pick(0, 0, 0, 2)), *self.some(lambda: joined(number, 6), 1)),
            groups=self.some(self.group),
            models=self.some(self.model, 1),
            calls=self.some(self.call, 4),
            collectives=self.log(),
            counts={self.pick(*OPS): self.small() for _ in range(3)},
            threads=self.some(self.thread),
            earlier_threads=self.some(self.thread),
            samples=self.some(self.sample, 3),
            helpers=self.some(self.helper),
            connections=self.some(lambda: OpenConnection(self.word(), self.word(), "ESTABLISHED", self.number())),
            locks=self.some(lambda: FileLock(self.word(), self.small(), self.number()), 1),
            raised=self.some(self.raised),
            ended=self.maybe(self.end),
            signals=self.some(lambda: SentSignal(self.small(), self.pick(4200, 5), self.pick(9, 15, 19, 40), self.time(), self.stack())),
            last_progress_ns=self.time(),
            blind=self.some(self.word, 1),
        )

    def host(self) -> HostFacts:
        return HostFacts(
            self.pick("node-a", "node-b"),
            self.some(self.word),
            self.some(self.holder),
            self.some(lambda: self.pick("lo", "eth0")),
            self.some(lambda: self.pick({"pid": 4200}, {"cgroup": True}, {}), 1),
            shm_free=self.number(),
        )

    def job(self) -> JobEvidence:
        numbers = self.random.sample(range(6), self.random.randint(0, 5))
        return JobEvidence(
            command=("rankwise",),
            started_ns=self.time(),
            now_ns=self.time(),
            world_size=self.pick(None, 0, 1, 4, 8),
            stall_after_s=self.pick(0.0, 10.0, 1e9),
            ranks={number: self.rank(number) for number in numbers},
            duplicates=self.some(lambda: self.rank(self.random.randint(0, 5)), 1),
            launchers=self.some(self.helper),
            hosts=self.some(self.host, 1),
            sources={self.pick(*FILES): self.pick(*SOURCES) for _ in range(2)},
            exit_code=self.pick(None, None, 0, 1),
            restarts=self.small(),
            lost_hosts=self.some(self.word, 1),
            cwd=self.pick("", HOME, "/"),
            blind=self.some(self.word, 1),
        )
