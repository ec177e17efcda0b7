"""Observes the job: which process is which rank, which made progress, which ended and how. Only reads; decides nothing."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankwise.evidence.audit import RandomUsed
from rankwise.evidence.collective_log import CollectiveLog
from rankwise.evidence.flight import log_from_calls, read_flights
from rankwise.evidence.frames import is_user_file, last_exception
from rankwise.evidence.journal import Journal
from rankwise.evidence.records import Call, Ended, Helper, RankEvidence, Sample, SentSignal, Stack, Thread
from rankwise.evidence.ring import RingWindow, read_ring
from rankwise.files import text_if_readable
from rankwise.launch.flight_recorder import fetch_flights
from rankwise.launch.process_table import Process, command_of, cwd_of, environment_of, read_sample, read_table, script_of
from rankwise.launch.stacks import parse_faulthandler
from rankwise.ranks import RankEnv, read_rank_env

# Not Slurm's variables: torchrun itself has a SLURM_PROCID there, and is no rank.
_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
_ASK_AGAIN_S = 15.0
_FORGET_EVERY_NS = 10_000_000_000  # unrelated processes: their pids may be used again
_SETTLED_NS = 5_000_000_000  # by then a forked process has called exec, and its environment is final
_FATAL = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating": signal.SIGFPE,
    "Illegal": signal.SIGILL,
}


class Observer:
    """Follows one job on one host through the probe's folder and the process table."""

    def __init__(self, live: Path, guardian: int, host: str) -> None:
        self._live = live
        self._guardian = guardian
        self._host = host
        self.table: dict[int, Process] = {}
        self.journals: dict[int, Journal] = {}
        self._marks: dict[int, bytes] = {}
        self.moved_ns: dict[int, int] = {}  # when a process last made progress that counts
        self.samples: dict[int, deque[Sample]] = {}
        self._commands: dict[int, tuple[list[str], str]] = {}  # pid: command, cwd
        self.parents: dict[int, int] = {}
        self.ended: dict[int, tuple[int, int]] = {}  # reported by the guardian: code, time
        self.threads: dict[int, tuple[int, tuple[Thread, ...]]] = {}
        self.earlier: dict[int, tuple[Thread, ...]] = {}
        self.glimpses: dict[int, list[Stack]] = {}
        self._flights: dict[int, CollectiveLog] = {}
        self._rings: dict[int, RingWindow] = {}
        self.flight_cost_s = 0.0
        self._silent_until: dict[int, float] = {}
        self.last_output: Callable[[int], str] = lambda pid: ""  # the end of what a process printed
        self._unrelated: set[int] = set()
        self._forgot_ns = 0
        self._claims: dict[int, list[int]] | None = None
        self._environs: dict[int, RankEnv] = {}
        self._started: dict[int, dict[str, str]] = {}  # children that a launcher's probe reported: they may end before they are seen
        self._born_ns: dict[int, int] = {}

    # -- seeing ---------------------------------------------------------------------------------------------------------------

    def glance(self, now_ns: int) -> None:
        """The cheapest look: whether any rank's ring moved. Reads mapped memory, without system calls."""
        for pid, ring in self._rings.items():
            marks = ring.marks()
            if marks != self._marks.get(pid):
                self._marks[pid] = marks
                self.moved_ns[pid] = now_ns

    def watched(self) -> set[int]:
        """The processes whose progress counts: those with a probe, and ranks that are known from their environment alone."""
        return {*self.journals, *(pid for pids in self.rank_pids().values() for pid in pids)}

    def heads(self) -> dict[int, int]:
        """How many calls each rank's ring has seen."""
        return {pid: ring.head() for pid, ring in self._rings.items()}

    def look(self, now_ns: int) -> None:
        """Take in what is new: journals, marks, the process table."""
        self._claims = None
        self._environs = {pid: env for pid, env in self._environs.items() if now_ns - self._born_ns.get(pid, 0) > _SETTLED_NS}
        if now_ns - self._forgot_ns > _FORGET_EVERY_NS:
            self._forgot_ns = now_ns
            self._unrelated.clear()
        self.table = read_table(self._guardian, self._unrelated)
        for pid, process in self.table.items():
            if pid not in self._commands:
                self._commands[pid] = (command_of(pid), cwd_of(pid))
                self._born_ns[pid] = now_ns
                self.moved_ns.setdefault(pid, now_ns)
            self.parents[pid] = process.parent if process.parent != self._guardian else self.parents.get(pid, process.parent)
        self._look_for_journals(now_ns)
        for pid, journal in self.journals.items():
            if journal.read_more(self._live / f"p-{pid}.jsonl"):
                self.moved_ns[pid] = now_ns
            if journal.ops and pid not in self._rings:
                self._rings[pid] = RingWindow(self._live / f"r-{pid}", len(journal.ops))
            if pid in self.table and self.table[pid].state != "Z":
                self.samples.setdefault(pid, deque(maxlen=240)).append(read_sample(self.table[pid]))

            for child, (env, time_ns) in journal.children.items():
                self._started.setdefault(child, env)
                self._born_ns.setdefault(child, time_ns)
        self.glance(now_ns)

    def _look_for_journals(self, now_ns: int) -> None:
        for path in self._live.glob("p-*.jsonl"):
            pid = int(path.stem[2:]) if path.stem[2:].isdecimal() else None
            if pid is not None and pid not in self.journals:
                self.journals[pid] = Journal(pid)
                self.moved_ns[pid] = now_ns

    def look_at_stacks(self, stacks: dict[int, tuple[Thread, ...]], now_ns: int) -> None:
        """Keep new stacks, and those of the look before."""
        for pid, threads in stacks.items():
            if pid in self.threads:
                self.earlier[pid] = self.threads[pid][1]
            self.threads[pid] = (now_ns, threads)

    def look_at_flights(self, pids: list[int]) -> None:
        """Fetch the flight recorders of these ranks."""
        stopped = {pid for pid, process in self.table.items() if process.state in ("T", "t")}  # by a signal
        answering = [pid for pid in pids if pid not in stopped and self._silent_until.get(pid, 0) < time.monotonic()]
        answers = fetch_flights({pid: self.journals[pid].server for pid in answering if self.journals[pid].server})
        self.flight_cost_s = max((answer.seconds for answer in answers.values() if not answer.is_silent), default=0.0)
        for pid, answer in answers.items():
            if answer.is_silent:  # asking costs the whole timeout: not at every look
                self._silent_until[pid] = time.monotonic() + _ASK_AGAIN_S
            if answer.dumps:
                self._flights[pid] = read_flights(answer.dumps, self.calls_of(pid), self._backend_of(pid)) or CollectiveLog()

    def _backend_of(self, pid: int) -> str:
        inits = self.journals[pid].inits if pid in self.journals else []
        return inits[-1].backend if inits else ""

    # -- who is who -----------------------------------------------------------------------------------------------------------

    def is_alive(self, pid: int) -> bool:
        return pid in self.table and self.table[pid].state != "Z"

    def rank_of(self, pid: int) -> int | None:
        """The rank of a process, if it is a rank's main process."""
        journal = self.journals.get(pid)
        if journal is not None and journal.inits:
            return journal.rank
        rank = self._env_of(pid).rank
        if rank is None or self._is_below_same_rank(pid, rank) or self._starts_ranks(pid):
            return None
        return rank

    def rank_pids(self) -> dict[int, list[int]]:
        """All processes that claim each rank in the latest start of the job, oldest first."""
        if self._claims is not None:
            return self._claims
        claims: dict[int, list[int]] = {}
        for pid in set(self.journals) | set(self.table) | set(self._started):
            rank = self.rank_of(pid)
            if rank is not None:
                claims.setdefault(rank, []).append(pid)
        self._claims = {rank: self._latest(pids) for rank, pids in sorted(claims.items())}
        return self._claims

    def processes_of(self, rank: int) -> list[int]:
        """Every process that was ever this rank, restarts included, in order."""
        return sorted((pid for pid in self.journals if self.rank_of(pid) == rank), key=self._started_ns)

    def _latest(self, pids: list[int]) -> list[int]:
        """Drop processes of earlier restarts, and processes that ended before a later one took their place."""
        newest = max(self._env_of(pid).restarts for pid in pids)
        current = sorted((pid for pid in pids if self._env_of(pid).restarts == newest), key=lambda pid: self._started_ns(pid))
        joined = [pid for pid in current if pid in self.journals and self.journals[pid].inits]
        pool = joined or current
        alive = [pid for pid in pool if self.is_alive(pid)]
        if alive and len(pool) > 1:
            last_dead = [pid for pid in pool if not self.is_alive(pid) and self._overlaps(pid, alive)]
            return sorted({*alive, *last_dead}, key=lambda pid: self._started_ns(pid))
        return pool if alive or len(pool) == 1 else [pid for pid in pool if pid == pool[-1] or self._overlaps(pid, pool[-1:])]

    def _overlaps(self, pid: int, others: list[int]) -> bool:
        ended = self.end_of(pid)
        return ended is not None and any(self._started_ns(other) < ended.time_ns for other in others)

    def _started_ns(self, pid: int) -> int:
        return int(self._process(pid).get("t") or self._born_ns.get(pid, 0))

    def _process(self, pid: int) -> dict[str, Any]:
        """What a process has said of itself."""
        return self.journals[pid].process if pid in self.journals else {}

    def _env_of(self, pid: int) -> RankEnv:
        if process := self._process(pid):
            return read_rank_env(process.get("env", {}))
        if pid not in self._environs:
            given = self._started.get(pid)
            self._environs[pid] = read_rank_env(given if given else environment_of(pid, _RANK_VARIABLES))
        return self._environs[pid]

    def _is_below_same_rank(self, pid: int, rank: int) -> bool:
        """Whether a process is a rank's helper rather than another rank: a child of a rank inherits its RANK."""
        parent = self.parents.get(pid) or self._process(pid).get("ppid")
        while parent:
            if parent in self.journals and (self.journals[parent].inits or self._env_of(parent).rank == rank):
                return not self._starts_ranks(parent)
            parent = self.parents.get(parent, 0)
        return False

    def _starts_ranks(self, pid: int) -> bool:
        """Whether a process is a launcher: its children have other rank variables than it has (torchrun in a pod that has RANK set)."""
        mine = self._env_of(pid)
        children = [child for child, parent in self.parents.items() if parent == pid]
        return any(
            self._env_of(child).rank is not None
            and (self._env_of(child).rank, self._env_of(child).local_rank) != (mine.rank, mine.local_rank)
            for child in children
        )

    # -- evidence -------------------------------------------------------------------------------------------------------------

    def calls_of(self, pid: int) -> tuple[Call, ...]:
        journal = self.journals.get(pid)
        view = read_ring(self._live / f"r-{pid}", journal) if journal is not None and journal.ops else None
        return view.calls if view else ()

    def end_of(self, pid: int) -> Ended | None:
        """How a process ended, by its own journal, else by the process that waited for it, else from its absence."""
        if self.is_alive(pid):
            return None
        journal = self.journals.get(pid)
        code, time_ns = self._reported_code(pid)
        crash = self._crash_stack(pid)
        if crash is not None:
            number, stack = crash
            sent = -code if code is not None and code < 0 else number
            return Ended("signal", time_ns or self.moved_ns.get(pid, 0), signal=sent, stack=stack, said=self._last_exception(pid, sent))
        if journal is not None and journal.ended is not None:
            return _as_reported(journal.ended, code)
        if code is not None and code < 0:
            return Ended("signal", time_ns, signal=-code, by=self._sender(pid, -code), said=self._last_exception(pid, -code))
        if code is not None:
            return Ended("vanished", time_ns, code=code)
        return Ended("vanished", self.moved_ns.get(pid, 0), by=self._sender(pid, None)) if pid in self._born_ns or journal else None

    def _reported_code(self, pid: int) -> tuple[int | None, int]:
        if pid in self.ended:
            return self.ended[pid]
        for journal in self.journals.values():
            if pid in journal.child_exits:
                return journal.child_exits[pid]
        return None, 0

    def _last_exception(self, pid: int, sent: int) -> str:
        # While NCCL's watchdog takes a process down by abort(), the other threads go on, and one may crash first.
        return last_exception(self.last_output(pid)) if sent in (signal.SIGABRT, signal.SIGSEGV) else ""

    def _crash_stack(self, pid: int) -> tuple[int, Stack] | None:
        text = text_if_readable(self._live / f"f-{pid}")
        if "Fatal Python error" not in text:  # a script that enables faulthandler itself sends it to its own stderr
            text = self.last_output(pid)
        if "Fatal Python error" not in text:
            return None
        text = text[text.rindex("Fatal Python error") :]
        number = next((int(value) for words, value in _FATAL.items() if words in text), 0)
        threads = parse_faulthandler(text, self._commands.get(pid, ([], ""))[1])
        # A crash in a thread of C++ has no current Python thread; the main thread is the last that faulthandler shows.
        main = next((thread for thread in threads if thread.is_main), threads[-1] if threads else None)
        return number, main.frames if main else ()

    def signals_to(self, pid: int) -> list[SentSignal]:
        """Signals that Python processes of the job sent to this one."""
        return [sent for journal in self.journals.values() for sent in journal.signals if sent.target == pid]

    def _sender(self, pid: int, number: int | None) -> str:
        senders = [sent.by for sent in self.signals_to(pid) if number is None or sent.signal == number]
        return "itself" if pid in senders else f"process {senders[-1]}" if senders else ""

    def _below(self, pid: int) -> list[int]:
        """The living and dead processes below a rank."""
        return sorted(child for child in self.parents if pid in self._ancestors(child) and self.rank_of(child) is None)

    def launchers(self, rank_pids: set[int]) -> tuple[Helper, ...]:
        """Processes of the job that are neither ranks nor below one."""
        others = [pid for pid in sorted(self._commands) if pid not in rank_pids and self.rank_of(pid) is None]
        return tuple(self._helper(pid) for pid in [pid for pid in others if not rank_pids & self._ancestors(pid)][:64])

    def _ancestors(self, pid: int) -> set[int]:
        found: set[int] = set()
        while (pid := self.parents.get(pid, 0)) and pid not in found:
            found.add(pid)
        return found

    def _helper(self, pid: int) -> Helper:
        command, cwd = self._commands.get(pid, ([], ""))
        journal = self.journals.get(pid)
        threads = self.threads.get(pid, (0, ()))[1]
        loops = any(frame.function == "_worker_loop" for thread in threads for frame in thread.frames)
        return Helper(
            pid=pid,
            command=" ".join(command)[:300],
            parent=self.parents.get(pid, 0),
            threads=threads,
            state=self.table[pid].state if pid in self.table else "",
            is_python=bool(command) and "python" in os.path.basename(command[0]),
            raised=journal.raised[0] if journal and journal.raised else None,
            ended=self.end_of(pid),
            script=script_of(command, cwd),
            is_dataloader_worker=loops,
        )

    def evidence_of(self, rank: int, pid: int, is_brief: bool = False) -> RankEvidence:
        """Everything seen of one rank, frozen; in brief, with its last calls only."""
        journal = self.journals.get(pid) or Journal(pid)
        view = read_ring(self._live / f"r-{pid}", journal, is_brief) if journal.ops else None
        calls = view.calls if view else ()
        alive = self.is_alive(pid)
        threads_ns, threads = self.threads.get(pid, (0, ()))
        command, cwd = self._commands.get(pid, ([], ""))
        below = self._below(pid)
        return RankEvidence(
            rank=rank,
            pid=pid,
            host=str(journal.process.get("host") or self._host),
            env=dict(journal.process.get("env") or {}),
            script=script_of(command, cwd),
            started_ns=self._started_ns(pid),
            alive=alive,
            torch=journal.torch,
            inits=tuple(journal.inits),
            groups=tuple(journal.groups),
            models=tuple(journal.models),
            calls=calls,
            num_forgotten=view.head - len(calls) if view else 0,
            collectives=self._log_of(pid, calls, alive),
            counts=view.counts if view else {},
            threads=threads,
            earlier_threads=self.earlier.get(pid, ()),
            threads_ns=threads_ns,
            samples=tuple(self.samples.get(pid, ())),
            helpers=tuple(self._helper(child) for child in below[:64]),
            raised=tuple(journal.raised),
            ended=self.end_of(pid),
            leaving=journal.ended if alive else None,
            caught=tuple(journal.caught.values()),
            signals=tuple(sent for target in (pid, *below) for sent in self.signals_to(target)),
            restarts=self._env_of(pid).restarts,
            last_progress_ns=self.moved_ns.get(pid, 0),
            blind=_blind_spots(journal),
            audit=journal.audit.frozen(journal.sites, self._randoms_below(pid, below)),
            glimpses=tuple(self.glimpses.get(pid, ())),
        )

    def _randoms_below(self, pid: int, below: list[int]) -> list[RandomUsed]:
        """The random numbers that the DataLoader workers of a rank used."""
        children = {child for child, journal in self.journals.items() if journal.process.get("ppid") == pid}
        told = sorted({*below, *children} & self.journals.keys())
        return [seen for child in told for seen in self.journals[child].audit.randoms[:64]]

    def num_audited(self) -> int:
        """How many lines the audits of all processes have, to see whether there is anything new."""
        return sum(journal.audit.num_taken for journal in self.journals.values())

    def _log_of(self, pid: int, calls: tuple[Call, ...], alive: bool) -> CollectiveLog:
        """The recorder's dump at the end if the rank left one, else what was fetched, else the calls alone."""
        last_dump = self._live / f"x-{pid}.json"
        last = read_flights([last_dump.read_bytes()], calls, self._backend_of(pid)) if not alive and last_dump.exists() else None
        return last or self._flights.get(pid) or log_from_calls(calls)


def source_files(stacks: list[Stack]) -> set[str]:
    """The user's own files that stacks mention."""
    return {frame.file for stack in stacks for frame in stack if frame.file.startswith("/") and is_user_file(frame.file)}


def _as_reported(own: Ended, code: int | None) -> Ended:
    """How a process ended, corrected by its exit code: it sees neither its own `raise SystemExit(n)` nor that a sys.exit was caught."""
    if code is None or own.kind == "os_exit" or code == (own.code or 0) & 0xFF:
        return own
    if code == 0:
        return Ended("finished", own.time_ns, code=0)
    if code > 0 and own.kind != "exception":
        return Ended("sys_exit", own.time_ns, code=code)
    # A signal after the script's end: a crash counts, the signals with which a launcher ends processes do not.
    return Ended("signal", own.time_ns, own.code, signal=-code) if own.kind == "finished" and -code in _FATAL.values() else own


def _blind_spots(journal: Journal) -> tuple[str, ...]:
    spots = [f"the probe failed at {what}" for what in journal.broken]
    if not journal.process:
        spots.append(f"process {journal.pid} runs without the probe (its environment was cleared, or it is not Python)")
    return tuple(dict.fromkeys(spots))
