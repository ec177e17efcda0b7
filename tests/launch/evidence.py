"""Evidence of a small job, made by hand; and a job whose processes and journals are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankwise.evidence.collective_log import CollectiveLog, Signature
from rankwise.evidence.records import Call, Frame, HostFacts, Init, JobEvidence, RankEvidence
from rankwise.launch import observe
from rankwise.launch.observe import Observer
from rankwise.launch.process_table import Process

LINE = Frame("train.py", 7, "main")
GUARDIAN = 5_000_000  # no process of this machine has a number so high
SECOND = 1_000_000_000


def a_rank(rank: int, host: str = "node-a", **details: Any) -> RankEvidence:
    log = CollectiveLog()
    log.add(1, Signature("0", "all_reduce", (4,), "float32"), 10, False, (LINE,))
    calls = (Call("all_reduce", 10, 0, (LINE,), sizes=(4,)), Call("barrier", 11, 12, (LINE,)))
    init = Init(rank, 2, "gloo", "env://", "node-a", 29400, None, started_ns=1, ended_ns=2)
    return RankEvidence(rank, 100 + rank, host, inits=(init,), collectives=log, calls=calls, **details)


def a_job(*ranks: RankEvidence, **details: Any) -> JobEvidence:
    facts = {"world_size": len(ranks), "hosts": (HostFacts("node-a"),), "now_ns": int(100e9), **details}
    return JobEvidence(("torchrun",), 1, stall_after_s=10.0, ranks={e.rank: e for e in ranks}, **facts)


class Scene:
    """A job under observation: processes come, write their journals, and go."""

    def __init__(self, live: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.live, self.now_ns = live, 100 * SECOND
        self.observer = Observer(live, GUARDIAN, "node-a")
        self._table: dict[int, Process] = {}
        self._environs: dict[int, dict[str, str]] = {}
        monkeypatch.setattr(observe, "read_table", lambda root, unrelated: dict(self._table))
        monkeypatch.setattr(observe, "environment_of", lambda pid, names: self._environs.get(pid, {}))

    def process(self, pid: int, parent: int = GUARDIAN, **env: str) -> None:
        """A process without the probe."""
        self._table[pid], self._environs[pid] = Process(pid, parent, "S", 0.0, 0), env

    def probed(self, pid: int, parent: int = GUARDIAN, **env: str) -> None:
        """A process with the probe."""
        self.process(pid, parent)
        self.write(pid, k="process", pid=pid, ppid=parent, host="node-a", argv=["python", "job.py"], env=env)

    def rank(self, pid: int, rank: int, parent: int = GUARDIAN, world_size: int = 2, **env: str) -> None:
        """One that has joined the job."""
        self.probed(pid, parent, RANK=str(rank), WORLD_SIZE=str(world_size), **env)
        init = {"backend": "gloo", "method": "env://", "timeout_s": 30.0, "address": "127.0.0.1", "port": "29500", "file_mtime": None}
        self.write(pid, k="init", frames=[], rank=rank, world_size=world_size, env={}, **init)

    def write(self, process: int, /, **line: Any) -> None:
        with (self.live / f"p-{process}.jsonl").open("a") as file:
            file.write(json.dumps({"t": self.now_ns, **line}) + "\n")

    def gone(self, *pids: int) -> None:
        for pid in pids:
            del self._table[pid]

    def ended(self, pid: int, code: int) -> None:
        """It is gone, and the guardian has reported its code."""
        self.gone(pid)
        self.observer.ended[pid] = code, self.now_ns

    def look(self) -> Observer:
        self.now_ns += SECOND
        self.observer.look(self.now_ns)
        return self.observer
