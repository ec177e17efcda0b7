"""Turns what the observer sees into one frozen JobEvidence, looking as deep as asked."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from rankwise.evidence.frames import find_tracebacks
from rankwise.evidence.records import FileLock, HostFacts, JobEvidence, OpenConnection, RankEvidence, Stack
from rankwise.launch.hostfacts import find_host_facts, oom_count
from rankwise.launch.job_output import tail_of
from rankwise.launch.observe import Observer, source_files
from rankwise.launch.plan import RunPlan
from rankwise.launch.process_table import connections_of, cwd_of, file_locks
from rankwise.launch.stacks import StackReader

_MAX_SOURCE = 512 << 10
_MAX_STACKS = 96
_SHOWN_TAIL = 4000
_MOST_SAMPLES = 12
_WORKER_FAULT = re.compile(r"ERROR: (Unexpected [\w -]+ encountered in worker)")


class Collector:
    """Collects evidence, and caches the costly parts: sources, host facts, the first stacks."""

    def __init__(self, plan: RunPlan, observer: Observer, live: Path, logs: Path, started_ns: int) -> None:
        self._plan, self._observer, self._logs, self._started_ns = plan, observer, logs, started_ns
        self._stacks = StackReader(live)
        self._sources: dict[str, str] = {}
        self._cwd = cwd_of(os.getpid())  # os.getcwd() would raise if the folder was removed
        self._oom_before = oom_count()
        self._seen_links: dict[int, tuple[OpenConnection, ...]] = {}
        self._seen_locks: list[FileLock] = []

    @property
    def has_late_stacks(self) -> bool:
        """Whether stacks have come since the last look that had been asked for."""
        return self._stacks.has_news

    def collect(self, depth: str, now_ns: int, stall_after_s: float, exit_code: int | None = None) -> JobEvidence:
        """depth: "flight" asks the recorders, "deep" reads stacks, locks and sockets too, "end" and "audit" only gather what is there."""
        observer = self._observer
        claims = observer.rank_pids()
        pids = [pid for pids in claims.values() for pid in pids]
        if depth in ("flight", "deep"):
            observer.look_at_flights([pid for pid in pids if observer.is_alive(pid) and pid in observer.journals])
        if depth == "deep":
            observer.look_at_stacks(self._stacks.read(self._worth_a_stack(pids)), now_ns)
        ranks = {rank: observer.evidence_of(rank, pids[0], depth == "audit") for rank, pids in claims.items()}
        duplicates = tuple(observer.evidence_of(rank, pid) for rank, pids in claims.items() for pid in pids[1:])
        if depth == "deep":
            alive = {e.pid for e in ranks.values() if e.alive and e.pid is not None}
            self._seen_links, self._seen_locks = connections_of(alive), file_locks(alive)
        if depth != "end":  # what was seen stays known until the next deep look: a verdict must not change because a look was less deep
            ranks = self._with_locks_and_sockets(ranks)
        ranks = self._with_worker_faults(self._with_logged_errors(ranks))
        hosts = (
            (self._host_facts(ranks),)
            if depth not in ("flight", "audit") or not all(e.inits and e.inits[-1].ended_ns for e in ranks.values())
            else ()
        )
        launchers = observer.launchers(set(pids))
        # What the first ranks printed last: who says what of the training, and who says nothing.
        shown = sorted(ranks)[:4] if depth in ("end", "audit") else ()
        tails = {f"rank-{rank}": tail_of(self._logs / f"rank-{rank}.log")[-_SHOWN_TAIL:] for rank in shown}
        self._read_sources(ranks, [helper.script for helper in launchers if helper.script])
        return JobEvidence(
            command=self._plan.command,
            started_ns=self._started_ns,
            now_ns=now_ns,
            world_size=_world_size(ranks),
            stall_after_s=stall_after_s,
            ranks=ranks,
            duplicates=duplicates,
            launchers=launchers,
            hosts=hosts,
            sources=dict(self._sources),
            exit_code=exit_code,
            restarts=max((e.restarts for e in ranks.values()), default=0),
            launch_style=self._plan.style,
            cwd=self._cwd,
            log_tails=tails,
            blind=(self._stacks.refused,) if self._stacks.refused and depth == "deep" else (),
        )

    def sample_stack(self, pid: int) -> None:
        """Look where a rank is that keeps the others waiting; several such looks show where it spends its time."""
        seen = self._observer.glimpses.setdefault(pid, [])
        if len(seen) >= _MOST_SAMPLES:
            return
        seen += [thread.frames for thread in self._stacks.peek(pid) if thread.is_main]

    def _worth_a_stack(self, rank_pids: list[int]) -> list[int]:
        """Living Python processes of the job: ranks first, then what runs below and above them."""
        alive = [pid for pid in self._observer.table if self._observer.is_alive(pid)]
        others = [pid for pid in alive if pid not in rank_pids and _is_python(pid)]
        return [pid for pid in [*rank_pids, *others] if pid in alive][:_MAX_STACKS]

    def _with_locks_and_sockets(self, ranks: dict[int, RankEvidence]) -> dict[int, RankEvidence]:
        links, locks = self._seen_links, self._seen_locks
        return {
            rank: replace(e, connections=links.get(e.pid or 0, ()), locks=tuple(lock for lock in locks if lock.waiter == e.pid))
            for rank, e in ranks.items()
        }

    def _with_logged_errors(self, ranks: dict[int, RankEvidence]) -> dict[int, RankEvidence]:
        """Give ranks that died without the probe the traceback in the shared log, where it can be no other process's."""
        unseen = [
            rank for rank, e in ranks.items() if not e.alive and not e.torch and not e.raised and e.ended and e.ended.kind == "vanished"
        ]
        if len(unseen) != 1:
            return ranks
        rank = unseen[0]
        ended = ranks[rank].ended
        found = find_tracebacks(tail_of(self._logs / "launcher.log"), ended.time_ns if ended else 0)
        return {**ranks, rank: replace(ranks[rank], raised=tuple(found[-1:]))} if found else ranks

    def _with_worker_faults(self, ranks: dict[int, RankEvidence]) -> dict[int, RankEvidence]:
        """What torch's signal handler in a DataLoader worker printed: often the only trace of a worker that crashed."""
        found = dict(ranks)
        for rank, e in ranks.items():
            if e.ended is not None and e.ended.kind == "exception" and not e.ended.said:
                fault = _WORKER_FAULT.search(tail_of(self._logs / f"rank-{rank}.log"))
                found[rank] = replace(e, ended=replace(e.ended, said=fault[1])) if fault else e
        return found

    def _host_facts(self, ranks: dict[int, RankEvidence]) -> HostFacts:
        inits = [e.inits[-1] for e in ranks.values() if e.inits and (not e.inits[-1].ended_ns or e.inits[-1].error)]
        addresses = {init.store_address for init in inits if init.method.startswith(("env", "tcp"))}
        ports = {port for init in inits if (port := init.store_port)}
        facts = find_host_facts(addresses, ports)
        if oom_count() > self._oom_before:
            facts = replace(facts, oom_kills=(*facts.oom_kills, {"cgroup": True}))
        return facts

    def _read_sources(self, ranks: dict[int, RankEvidence], scripts: list[str]) -> None:
        stacks = []
        for e in ranks.values():
            stacks += [call.stack for call in e.calls[-64:]] + [call.stack for call in e.calls if call.is_open or call.failed]
            stacks += [thread.frames for thread in e.threads] + [t.frames for h in e.helpers for t in h.threads]
            stacks += [init.stack for init in e.inits] + [g.stack for g in e.groups] + [m.stack for m in e.models]
            stacks += [raised.stack for raised in e.raised] + [e.ended.stack if e.ended else ()]
            scripts += [model.class_file for model in e.models] + [e.script]
        latest = [call.stack for e in ranks.values() for call in e.calls[-3:]]
        self._keep_sources([*{*source_files(stacks), *filter(None, scripts)}, *_library_files(latest)])
        self._keep_sources(_neighbours(list(self._sources)))

    def _keep_sources(self, files: list[str]) -> None:
        for file in files:
            if file not in self._sources and len(self._sources) < 200:
                self._sources[file] = _read_text(file)


def _library_files(stacks: list[Stack]) -> list[str]:
    """The libraries between the user's code and torch: what their conditions mean is read there (`trainer.is_world_process_zero()`)."""
    files = [f.file for stack in stacks for f in stack if "-packages/" in f.file and "/torch/" not in f.file]
    return list(dict.fromkeys(files))[:40]


def _neighbours(files: list[str]) -> list[str]:
    """Modules beside the script: helper functions such as is_main_process() are often defined there."""
    found = []
    for folder in {os.path.dirname(file) for file in files if file.endswith(".py") and "-packages/" not in file}:
        try:
            found += [os.path.join(folder, name) for name in sorted(os.listdir(folder))[:60] if name.endswith(".py")]
        except OSError:
            continue
    return found[:120]


def _read_text(file: str) -> str:
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            return stream.read(_MAX_SOURCE)
    except OSError:
        return ""


def _world_size(ranks: dict[int, RankEvidence]) -> int | None:
    sizes = [e.inits[-1].world_size for e in ranks.values() if e.inits and e.inits[-1].world_size]
    if not sizes:
        sizes = [int(size) for e in ranks.values() if (size := e.env.get("WORLD_SIZE", "")).isdecimal() and len(size) < 10]
    return max(set(sizes), key=sizes.count) if sizes else None


def _is_python(pid: int) -> bool:
    try:
        return "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return False
