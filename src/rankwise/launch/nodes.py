"""Several nodes, one verdict: each watcher asks the others for their evidence, judges the whole job, and believes the first verdict told.

The messages travel through `courier`, a process of its own; what comes from another node is read as carefully as a file from a stranger.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from rankwise.diagnose import diagnose
from rankwise.diagnose.standing import standings, wait_of
from rankwise.evidence.collectives import Signature
from rankwise.evidence.folder import pack_log, thaw_stack, unpack_log
from rankwise.evidence.records import Call, Ended, JobEvidence, RankEvidence, Stack
from rankwise.evidence.thaw import freeze, thaw
from rankwise.findings import Finding, Place, Wait, ranks_text
from rankwise.launch.courier import MAX_VALUE, poll_interval_s, read_frame, write_frame
from rankwise.launch.observe import Observer
from rankwise.launch.plan import RunPlan

_SILENT_S = 6.0  # a node that has not answered for so long is lost
_PROVEN_SILENT_S = 20.0  # where nothing else says so: so long, and a frozen machine would be no better
_STUCK_S = 5.0
_ANSWER_S = 6.0
_JOIN_S = 30.0
_END_WAIT_S = 9.0
_END_ANSWER_S = 4.0
_LEAVE_S = 5.0
_HURRY_S = 1.0
_MAX_PLAIN = 64 << 20
_MAX_COURIERS = 3
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError, zlib.error)
_CALL = tuple(f.name for f in fields(Call) if f.name != "stack")
_PORTS = {"c10d": 29400, "static": 29500}

Look = Callable[[str], JobEvidence]
Sent = tuple[dict[str, Any], bytes]
Received = tuple[dict[str, Any], bytes, float, int]  # and when


@dataclass(frozen=True)
class Verdict:
    """What one watcher found out about the whole job; the others take it over."""

    outcome: str
    findings: list[Finding]
    job: JobEvidence
    stuck_s: float | None = None
    author: int = 0


class OneNode:
    """A job on this node alone: what is asked is answered from here."""

    def __init__(self) -> None:
        self._asked: JobEvidence | None = None

    def turn(self) -> None:
        """Called at every look: hear what is new and answer who asks."""

    def wanted_depth(self) -> str:
        """Whether another node gives reason to look closer, as `Pace.wanted_depth`."""
        return ""

    def can_ask(self) -> bool:
        """False while the answers to a question are still on their way."""
        return True

    def ask(self, job: JobEvidence, depth: str) -> None:
        """Ask the other nodes for what they see; `job` is what this one does."""
        self._asked = job

    def whole_job(self) -> JobEvidence | None:
        """The evidence of all nodes, once they have answered."""
        job, self._asked = self._asked, None
        return job

    def stop_order(self) -> Verdict | None:
        """The verdict of another node that has stopped the job as hung, so that this one is to stop as well."""
        return None

    def publish(self, verdict: Verdict) -> Verdict:
        """Tell all nodes; returns what they all believe, which is another node's verdict where that was there first."""
        return verdict

    def last_job(self, job: JobEvidence, is_hurried: bool) -> JobEvidence:
        """This node's job has ended: the evidence of all nodes, waited for as long as it makes sense, or not at all."""
        return job

    def leave(self) -> None:
        """Let the others hear the last word, then go."""


def join_nodes(plan: RunPlan, observer: Observer, look: Look) -> OneNode:
    """Meet the other nodes of the job where torchrun meets them; with one node there is nobody to meet."""
    place = meeting_place(plan)
    return SeveralNodes(place, plan.num_nodes, observer, look) if place else OneNode()


def meeting_place(plan: RunPlan) -> tuple[str, int, str] | None:
    """Host, port and key prefix of the rendezvous store; None where there is no such store."""
    backend = _option(plan.command, "--rdzv-backend") or "static"
    if plan.style != "torchrun" or plan.num_nodes < 2 or not plan.endpoint or backend not in _PORTS:
        return None
    host, _, port = plan.endpoint.rpartition(":")
    if not port.isdigit():
        host, port = plan.endpoint, str(_PORTS[backend])
    return host.strip("[]"), int(port), f"rankwise/{plan.job_id}"


def _option(command: tuple[str, ...], name: str) -> str:
    """The value of a torchrun option, as `--name value` or `--name=value`, with dashes or underscores."""
    for i, word in enumerate(command):
        given, has_value, value = word.partition("=")
        if given.replace("_", "-") == name:
            return value if has_value else "".join(command[i + 1 : i + 2])
    return ""


# -- the other nodes ----------------------------------------------------------------------------------------------------------


@dataclass
class Peer:
    """Another node, as far as it has been heard of."""

    number: int
    host: str = ""
    ranks: dict[int, int] = field(default_factory=dict)  # rank: pid
    serial: int = -1
    ask: int = 0
    depth: str = "flight"
    answers: dict[int, int] = field(default_factory=dict)  # node: the last of its questions that the snapshot answers
    version: int = 0
    is_final: bool = False
    code: int | None = None
    beats: dict[str, int] = field(default_factory=dict)  # channel: the last beat seen there
    first_ns: int = 0
    heard_s: float = 0.0
    heard_ns: int = 0
    num_polls: int = 0  # looks since its last beat
    fetched: int = 0
    snapshot: bytes = b""
    read: tuple[int, JobEvidence | None] = (0, None)  # the snapshot unpacked, and which version that was

    def take_status(self, channel: str, text: str, now_s: float, now_ns: int) -> None:
        """Its status as a channel shows it; an older one than known, or one that makes no sense, changes nothing."""
        try:
            facts = json.loads(text)
            beat, serial = int(facts["beat"]), int(facts.get("serial", 0))
        except _DAMAGE:
            return
        self.num_polls += 1
        if self.beats.get(channel) != beat:
            self.beats[channel], self.heard_s, self.heard_ns, self.num_polls = beat, now_s, now_ns, 0
            self.first_ns = self.first_ns or now_ns
        if serial > self.serial:
            with contextlib.suppress(*_DAMAGE):
                vars(self).update(_read_status(facts), serial=serial)

    def has_answered(self, number: int, ask: int) -> bool:
        """True if its snapshot is here and was made after the question; after its end nothing changes any more."""
        return self.fetched >= self.version > 0 and (self.is_final or self.answers.get(number, 0) >= ask)

    def evidence(self) -> JobEvidence | None:
        """What it saw of its own ranks; None if it never said, or nothing that could be read."""
        if self.read[0] != self.fetched:
            self.read = (self.fetched, unpack_job(self.snapshot))
        return self.read[1]


def _read_status(facts: dict[str, Any]) -> dict[str, Any]:
    """What a peer says of itself, as the fields of `Peer`; raises one of _DAMAGE for what makes no sense."""
    return {
        "host": str(facts.get("host", ""))[:255],
        "ranks": {int(rank): int(pid) for rank, pid in facts.get("ranks", {}).items()},
        "ask": int(facts.get("ask", 0)),
        "depth": "deep" if facts.get("depth") == "deep" else "flight",
        "answers": {int(number): int(ask) for number, ask in facts.get("answers", {}).items()},
        "version": int(facts.get("version", 0)),
        "is_final": facts.get("final") is True,
        "code": int(facts["code"]) if facts.get("code") is not None else None,
    }


class SeveralNodes(OneNode):
    """The watcher's side of a job on several nodes."""

    def __init__(self, place: tuple[str, int, str], num_nodes: int, observer: Observer, look: Look) -> None:
        super().__init__()
        self._place, self._num_nodes, self._observer, self._look = place, num_nodes, observer, look
        self._host = os.uname().nodename
        self._started_s = time.monotonic()
        self._number = 0
        self._peers: dict[int, Peer] = {}
        self._channels: dict[str, tuple[float, int]] = {}  # living ones: when last heard, and the serial written there
        self._verdicts: dict[str, tuple[float, Verdict | None]] = {}  # channel: when seen, and what it says
        self._status: dict[str, Any] = {}
        self._serial, self._ask, self._version = 0, 0, 0
        self._depth = "flight"
        self._answers: dict[int, int] = {}
        self._posts: dict[str, bytes] = {}
        self._ranks: dict[int, int] = {}  # of this node
        self._restarted_ns = 0  # when these took the place of others
        self._counted_s = 0.0
        self._looked_s = 0.0
        self._asked_s = 0.0
        self._resting: dict[int, int] = {}
        self._num_unanswered = 0
        self._told_lost: set[int] = set()
        self._code: int | None = None
        self._is_final = False
        self._is_complete, self._is_hurried = True, False
        self._num_couriers = 0
        self._start_courier()

    # -- the courier ----------------------------------------------------------------------------------------------------------

    def _start_courier(self) -> None:
        host, port, prefix = self._place
        self._num_couriers += 1
        self._courier = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("courier.py")), host, str(port), prefix, str(self._number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._inbox: queue.SimpleQueue[Received] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Sent | None] = queue.SimpleQueue()
        threading.Thread(target=_receive, args=(self._courier, self._inbox), name="from courier", daemon=True).start()
        threading.Thread(target=_deliver, args=(self._courier, self._outbox), name="to courier", daemon=True).start()
        self._channels.clear()
        for what in list(self._posts):
            self._send(what)

    def _send(self, post: str = "", hot_s: float = 0.0) -> None:
        """Hand the courier this node's status, and what is to be posted with it."""
        self._serial += 1
        facts = {"status": {**self._status, "serial": self._serial}, "post": post, "hot_s": hot_s}
        self._outbox.put((facts, self._posts.get(post, b"")))

    def _hear(self) -> None:
        """Take in all that came since the last time."""
        while not self._inbox.empty():
            facts, body, now_s, now_ns = self._inbox.get()
            news, channel = facts["news"], facts.get("channel", "")
            if news == "joined":
                self._number = facts["number"]
            elif news == "broken":
                self._channels.pop(channel, None)
            elif news == "peers":
                self._channels[channel] = (now_s, facts["serial"])
                for number, text in facts["statuses"].items():
                    self._peers.setdefault(int(number), Peer(int(number))).take_status(channel, text, now_s, now_ns)
            elif news == "snapshot":
                peer = self._peers.setdefault(facts["number"], Peer(facts["number"]))
                if facts["version"] >= peer.fetched:
                    peer.fetched, peer.snapshot = facts["version"], body
            elif news == "verdict":
                self._verdicts.setdefault(channel, (now_s, unpack_verdict(body)))

    def _living_channels(self) -> set[str]:
        limit = 2.0 + 4 * poll_interval_s(len(self._peers))
        return {name for name, (heard_s, _) in self._channels.items() if time.monotonic() - heard_s < limit}

    # -- every look -----------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        self._hear()
        if self._courier.poll() is not None and self._num_couriers < _MAX_COURIERS:
            self._start_courier()
        self._update_status()
        waiting = [peer for peer in self._peers.values() if peer.ask > self._answers.get(peer.number, 0) and not self._is_lost(peer)]
        if waiting and time.monotonic() - self._looked_s > 0.3:
            self._answers = {peer.number: peer.ask for peer in self._peers.values()}
            self._post(self._look(self._depth_for(waiting)))

    def _depth_for(self, peers: list[Peer]) -> str:
        if self._have_ranks_ended():
            return "end"
        return "deep" if any(peer.depth == "deep" for peer in peers) else "flight"

    def _count_ranks(self) -> None:
        """Once a second: which ranks run here, and since when; at a restart all processes are new."""
        if time.monotonic() - self._counted_s < 1.0:
            return
        self._counted_s = time.monotonic()
        ranks = {rank: pids[0] for rank, pids in self._observer.rank_pids().items()}
        if ranks and self._ranks and not set(ranks.values()) & set(self._ranks.values()):
            self._restarted_ns = time.time_ns()
        self._ranks = ranks

    def _update_status(self) -> None:
        self._count_ranks()
        status = {
            "host": self._host,
            "ranks": self._ranks,
            "ask": self._ask,
            "depth": self._depth,
            "answers": self._answers,
            "version": self._version,
            "final": self._is_final,
            "code": self._code,
        }
        if status != self._status:
            self._status = status
            self._send()

    def _post(self, job: JobEvidence, hot_s: float = 0.0) -> None:
        """Show the others what this node sees."""
        self._looked_s = time.monotonic()
        self._posts["snapshot"] = pack_job(job)
        self._version += 1
        self._status = {
            **self._status, "version": self._version, "answers": dict(self._answers), "ask": self._ask, "depth": self._depth,
            "final": self._is_final, "code": self._code,
        }  # fmt: skip
        self._send("snapshot", hot_s)

    def wanted_depth(self) -> str:
        lost = {peer.number for peer in self._current() if self._is_lost(peer)}
        if lost <= self._told_lost:
            return ""
        self._told_lost = lost
        return "flight"

    # -- asking ---------------------------------------------------------------------------------------------------------------

    def can_ask(self) -> bool:
        """Also not once all ranks here have ended: nothing hangs any more, and the launcher on its way out is left in peace."""
        return self._asked is None and not self._have_ranks_ended()

    def _have_ranks_ended(self) -> bool:
        return bool(self._ranks) and not any(self._observer.is_alive(pid) for pid in self._ranks.values())

    def ask(self, job: JobEvidence, depth: str) -> None:
        """The questions known at the last turn were asked before `job` was collected, so it answers them too."""
        self._asked, self._asked_s = job, time.monotonic()
        self._resting = {pid: ns for pid, ns in self._observer.moved_ns.items() if job.now_ns - ns > 1e9}
        self._ask, self._depth = self._ask + 1, depth
        self._answers = {peer.number: peer.ask for peer in self._peers.values()}
        self._post(job, _ANSWER_S)

    def whole_job(self) -> JobEvidence | None:
        self._hear()
        job, age_s = self._asked, time.monotonic() - self._asked_s
        if job is None:
            return None
        silent = [peer for peer in self._current() if not self._is_lost(peer) and not peer.has_answered(self._number, self._ask)]
        if (silent or self._is_too_early(job)) and age_s < _ANSWER_S:
            return None
        self._asked = None
        self._num_unanswered = self._num_unanswered + 1 if silent else 0
        if self._has_moved_since() or self._have_ranks_ended() or self._is_too_early(job) or 0 < self._num_unanswered < 3:
            return None
        return self._merged(job, [f"node {peer.host} does not answer: what is known of its ranks is old" for peer in silent])

    def _is_too_early(self, job: JobEvidence) -> bool:
        """Ranks are still missing, and the nodes they may be on have had no time to be heard of."""
        complete = len(self._peers) + 1 >= self._num_nodes or sum(len(p.ranks) for p in self._peers.values()) + len(job.ranks) >= (
            job.world_size or 0
        )
        return not complete and time.monotonic() - self._started_s < _JOIN_S and self._courier.poll() is None

    def _has_moved_since(self) -> bool:
        """A rank that rested when the question was asked moves again: its evidence does not fit the others' any more."""
        return any(self._observer.moved_ns.get(pid, 0) != ns for pid, ns in self._resting.items())

    def _merged(self, job: JobEvidence, blind: Iterable[str] = ()) -> JobEvidence:
        current = self._current()
        lost = [peer for peer in current if self._is_lost(peer)]
        evidence = [seen for peer in current if peer not in lost and (seen := peer.evidence()) is not None]
        codes = [peer.code for peer in current if peer.is_final and peer.code]
        whole = merge_jobs(job, [*evidence, *map(lost_job, lost)], tuple(peer.host for peer in lost))
        unseen = [f"node {peer.host} sent nothing that could be read" for peer in current if peer.fetched and peer.evidence() is None]
        if (whole.world_size or 0) > len(whole.ranks):
            unseen.append(f"{whole.world_size} ranks belong to the job, but only {len(whole.ranks)} were heard of")
        code = job.exit_code or next(iter(codes), job.exit_code) if job.exit_code is not None else None
        return replace(whole, exit_code=code, now_ns=time.time_ns(), blind=(*whole.blind, *blind, *unseen))

    # -- who is there ---------------------------------------------------------------------------------------------------------

    def _current(self) -> list[Peer]:
        """The nodes that belong to the job as it is now: not those it went on without, nor those that came back under a new number."""
        heard = sorted((peer for peer in self._peers.values() if peer.heard_ns), key=lambda peer: peer.number)
        return [peer for peer in heard if not (self._is_silent(peer) or peer.is_final) or not self._is_past(peer, heard)]

    def _is_past(self, peer: Peer, heard: list[Peer]) -> bool:
        came_back = any(other.host == peer.host and other.first_ns > peer.heard_ns for other in heard)
        return came_back or peer.heard_ns < self._restarted_ns

    def _is_lost(self, peer: Peer) -> bool:
        return self._is_silent(peer) and not peer.is_final

    def _is_silent(self, peer: Peer) -> bool:
        """No beat for long; and it is not only we who did not look, unless no store is left to look at."""
        limit = _SILENT_S + 4 * poll_interval_s(len(self._peers))
        if time.monotonic() - peer.heard_s < limit or self._courier.poll() is not None:
            return False
        return peer.num_polls >= 4 or not self._living_channels()

    # -- the verdict ----------------------------------------------------------------------------------------------------------

    def stop_order(self) -> Verdict | None:
        """Where the ranks here have ended already, their launcher is given time to end by itself, with its own code."""
        agreed = self._agreed()
        if agreed is None or agreed.outcome != "hung":
            return None
        first_s = min(seen_s for seen_s, _ in self._verdicts.values())
        return agreed if self._is_stopped_by(agreed) or time.monotonic() - first_s > _END_WAIT_S else None

    def _is_stopped_by(self, agreed: Verdict) -> bool:
        return agreed.outcome == "hung" and any(e.alive for rank, e in agreed.job.ranks.items() if rank in self._ranks)

    def _agreed(self) -> Verdict | None:
        """Settled once every channel has shown who was first there: then the lowest number counts, on every node alike."""
        self._hear()
        known = {self._number, *(peer.number for peer in self._current())}
        seen = [verdict for _, verdict in self._verdicts.values() if verdict is not None and verdict.author in known]
        if not seen:
            return None
        first_s = min(seen_s for seen_s, _ in self._verdicts.values())
        if not self._living_channels() <= set(self._verdicts) and time.monotonic() - first_s < 1.0:
            return None
        return min(seen, key=lambda verdict: verdict.author)

    def publish(self, verdict: Verdict) -> Verdict:
        self._hear()
        is_worth_it = bool(verdict.findings) and (verdict.outcome == "hung" or self._is_complete)
        if not self._peers or not (is_worth_it or self._verdicts) or self._courier.poll() is not None:
            return verdict
        if not self._verdicts:
            self._posts["verdict"] = pack_verdict(replace(verdict, author=self._number))
            self._send("verdict", hot_s=_LEAVE_S)
        _wait(lambda: self._agreed() is not None, 2.0)
        agreed = self._agreed() or verdict
        # What had ended here by itself was not stopped, whatever the others had to do.
        return replace(agreed, outcome="hung" if self._is_stopped_by(agreed) else verdict.outcome)

    # -- the end --------------------------------------------------------------------------------------------------------------

    def last_job(self, job: JobEvidence, is_hurried: bool) -> JobEvidence:
        self._hear()
        self._is_final, self._is_hurried, self._code = True, is_hurried, job.exit_code
        self._ask, self._depth = self._ask + 1, "flight"
        self._answers = {peer.number: peer.ask for peer in self._peers.values()}
        self._update_status()
        self._post(job, _END_WAIT_S)
        started_s, limit_s = time.monotonic(), _HURRY_S if is_hurried else _END_WAIT_S if job.exit_code else _END_ANSWER_S
        self._is_complete = _wait(lambda: self._is_all_told(time.monotonic() - started_s, bool(job.exit_code)), limit_s)
        return self._merged(job)

    def _is_all_told(self, waited_s: float, has_failed: bool) -> bool:
        """Every node has ended, is lost, or goes on and has said what it sees; after a failure, also those not yet heard of."""
        self._hear()
        if self._courier.poll() is not None or self._agreed() is not None:
            return True
        if has_failed and len(self._peers) + 1 < self._num_nodes and waited_s < 2.0:
            return False
        still_there = [peer for peer in self._current() if not peer.is_final and not self._is_lost(peer)]
        if any(peer.fetched < peer.version for peer in self._current() if peer.is_final):
            return False
        return (waited_s > _END_ANSWER_S and all(peer.has_answered(self._number, self._ask) for peer in still_there)) or not still_there

    def leave(self) -> None:
        """A store of ours may be the last place where the others can read: stay until they have, but not for ever."""
        self._is_final = True
        self._update_status()
        _wait(self._is_heard, 1.5)
        _wait(self._are_others_done, _HURRY_S if self._is_hurried else _LEAVE_S)
        self._outbox.put(None)
        try:
            self._courier.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self._courier.kill()
            self._courier.wait()

    def _is_heard(self) -> bool:
        self._hear()
        living = self._living_channels()
        return self._courier.poll() is not None or not self._number or all(self._channels[name][1] >= self._serial for name in living)

    def _are_others_done(self) -> bool:
        self._hear()
        return self._courier.poll() is not None or all(peer.is_final or self._is_lost(peer) for peer in self._current())


def _receive(courier: subprocess.Popen[bytes], inbox: queue.SimpleQueue[Received]) -> None:
    """A thread of its own, so that the courier never blocks on a full pipe while the watcher thinks."""
    assert courier.stdout is not None
    with contextlib.suppress(OSError, ValueError), courier.stdout:
        while (frame := read_frame(courier.stdout)) is not None:
            inbox.put((*frame, time.monotonic(), time.time_ns()))


def _deliver(courier: subprocess.Popen[bytes], outbox: queue.SimpleQueue[Sent | None]) -> None:
    """The other way round: the watcher never blocks on a courier that somebody has stopped."""
    assert courier.stdin is not None
    with contextlib.suppress(OSError, ValueError), courier.stdin:
        while (frame := outbox.get()) is not None:
            write_frame(courier.stdin, *frame)


def _wait(is_done: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not (done := is_done()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return done


# -- one job out of many ------------------------------------------------------------------------------------------------------


def merge_jobs(mine: JobEvidence, others: list[JobEvidence], lost_hosts: tuple[str, ...] = ()) -> JobEvidence:
    """The whole job; what is about this node alone (command, launchers, times) stays as it is here."""
    ranks = dict(mine.ranks)
    duplicates = list(mine.duplicates)
    for other in others:
        duplicates += other.duplicates
        for rank, evidence in other.ranks.items():
            kept, spare = _newer_first(ranks.get(rank, evidence), evidence)
            ranks[rank] = kept
            if spare is not kept and _were_together(kept, spare):
                duplicates.append(spare)
    sizes = [job.world_size for job in (mine, *others) if job.world_size]
    sources: dict[str, str] = {}
    for job in (*others, mine):
        sources.update(job.sources)
    return replace(
        mine,
        world_size=mine.world_size or max(sizes, default=None),
        ranks=dict(sorted(ranks.items())),
        duplicates=tuple(duplicates),
        hosts=(*mine.hosts, *(host for other in others for host in other.hosts)),
        sources=sources,
        restarts=max(job.restarts for job in (mine, *others)),
        lost_hosts=lost_hosts,
        blind=tuple(dict.fromkeys(spot for job in (mine, *others) for spot in job.blind)),
    )


def _newer_first(a: RankEvidence, b: RankEvidence) -> tuple[RankEvidence, RankEvidence]:
    """Which of two processes is the rank now: a rank may have moved to another node at a restart."""
    return (a, b) if (a.restarts, a.alive, a.started_ns) >= (b.restarts, b.alive, b.started_ns) else (b, a)


def _were_together(kept: RankEvidence, spare: RankEvidence) -> bool:
    return kept.restarts == spare.restarts and (spare.alive or (spare.ended is not None and spare.ended.time_ns > kept.started_ns))


def lost_job(peer: Peer) -> JobEvidence:
    """What is left of a node that is gone: its last words, if there were any, and the ranks it was known to run."""
    seen = peer.evidence() or JobEvidence((), 0, peer.heard_ns, None, 0.0, {})
    gone = Ended("vanished", peer.heard_ns)
    known = {rank: seen.ranks.get(rank) or RankEvidence(rank, pid, peer.host) for rank, pid in peer.ranks.items()}
    ranks = {
        rank: evidence if evidence.ended is not None else replace(evidence, alive=False, ended=gone, host=peer.host)
        for rank, evidence in {**seen.ranks, **known}.items()
    }
    return replace(seen, ranks=ranks)


# -- the finding --------------------------------------------------------------------------------------------------------------


def diagnose_whole(job: JobEvidence) -> list[Finding]:
    """As `diagnose`, and a node that is gone comes first unless something else is proven to be the cause."""
    found = diagnose(job)
    lost = find_lost_nodes(job)
    if lost is None:
        return found
    gone = {place.rank for place in lost.culprits}
    others = [finding for finding in found if not finding.culprits or {place.rank for place in finding.culprits} - gone]
    if others and others[0].certain and others[0].severity == "error":
        return [others[0], lost, *others[1:]]
    return [lost, *(finding for finding in others if finding.severity == "info")]


def find_lost_nodes(job: JobEvidence) -> Finding | None:
    """Nodes whose watcher stopped answering, and with it every rank there. Proven when the ranks that are left cannot go on."""
    if not job.lost_hosts or job.exit_code == 0:
        return None
    gone = {r: e for r, e in job.ranks.items() if e.host in job.lost_hosts and e.ended is not None and e.ended.kind == "vanished"}
    stands = standings(job)
    living = [stands[rank] for rank, evidence in job.ranks.items() if evidence.alive]
    silent_s = (job.now_ns - max((e.ended.time_ns for e in gone.values() if e.ended), default=job.now_ns)) / 1e9
    is_stuck = bool(living) and all(s.kind in ("waiting", "init") and job.now_ns - s.since_ns > _STUCK_S * 1e9 for s in living)
    is_felt = any(s.is_echo for s in stands.values())
    nodes = ", ".join(job.lost_hosts)
    who = f"{'nodes' if len(job.lost_hosts) > 1 else 'node'} {nodes}" + (f" ({ranks_text(list(gone))})" if gone else "")
    has = "are gone: their watchers" if len(job.lost_hosts) > 1 else "is gone: its watcher"
    return Finding(
        "RW412",
        "node-lost",
        severity="error",
        certain=job.exit_code is not None or (is_stuck and (is_felt or silent_s >= _PROVEN_SILENT_S)),
        summary=f"{who} {has} stopped answering" + (f" {silent_s:.0f} s ago" if silent_s >= 1 else ""),
        culprits=tuple(Place(rank=r, host=e.host, pid=e.pid) for r, e in sorted(gone.items()))
        or tuple(Place(host=host) for host in job.lost_hosts),
        waiting=tuple(wait_of(s) for rank, s in sorted(stands.items()) if rank not in gone and s.kind in ("waiting", "init")),
        why="the machine, its network or everything rankwise ran there went away at once; no rank there could say why",
        next=(
            "see whether the node is up and can be reached, and ask its scheduler and kernel log: ping, sacct, kubectl get events, dmesg",
            "rankwise explain RW412",
        ),
        deadlock=is_stuck,
    )


# -- packing ------------------------------------------------------------------------------------------------------------------


def pack_job(job: JobEvidence) -> bytes:
    """Evidence as one compressed value, small enough for the store: what is needed least is left out first."""
    for slim in (0, 1, 2):
        data = zlib.compress(json.dumps(_freeze_job(job, slim), default=str).encode(), 3)
        if len(data) <= MAX_VALUE:
            return data
    return b""


def unpack_job(data: bytes) -> JobEvidence | None:
    """None for whatever is not evidence."""
    try:
        return _thaw_job(_unpack(data))
    except _DAMAGE:
        return None


def pack_verdict(verdict: Verdict) -> bytes:
    """The verdict with the evidence it was derived from, or without where that would be too much."""
    told = {
        "outcome": verdict.outcome,
        "author": verdict.author,
        "stuck_s": verdict.stuck_s,
        "findings": [finding.to_dict() for finding in verdict.findings],
    }
    for slim in (0, 1, 2):
        data = zlib.compress(json.dumps({**told, "job": _freeze_job(verdict.job, slim)}, default=str).encode(), 3)
        if len(data) <= MAX_VALUE:
            return data
    return zlib.compress(json.dumps(told, default=str).encode())


def unpack_verdict(data: bytes) -> Verdict | None:
    """None for whatever is no verdict."""
    try:
        told = _unpack(data)
        stuck_s = told.get("stuck_s")
        return Verdict(
            outcome=str(told["outcome"]),
            findings=[_thaw_finding(finding) for finding in told["findings"][:100]],
            job=_thaw_job(told["job"]),
            stuck_s=float(stuck_s) if stuck_s is not None else None,
            author=int(told["author"]),
        )
    except _DAMAGE:
        return None


def _unpack(data: bytes) -> dict[str, Any]:
    stream = zlib.decompressobj()
    plain = stream.decompress(data, _MAX_PLAIN)
    if stream.unconsumed_tail:
        raise ValueError("too large to be evidence")
    facts = json.loads(plain)
    if not isinstance(facts, dict):
        raise ValueError("not an object")
    return facts


def _freeze_job(job: JobEvidence, slim: int) -> dict[str, Any]:
    plain = {f.name: freeze(getattr(job, f.name)) for f in fields(job) if f.name not in ("ranks", "duplicates", "sources")}
    plain["ranks"] = [_freeze_rank(evidence, slim) for evidence in job.ranks.values()]
    plain["duplicates"] = [_freeze_rank(evidence, slim) for evidence in job.duplicates]
    plain["sources"] = job.sources if slim == 0 else {}
    return plain


def _thaw_job(data: dict[str, Any]) -> JobEvidence:
    job: JobEvidence = thaw(JobEvidence, {**data, "ranks": {}, "duplicates": []})
    ranks = [_thaw_rank(rank) for rank in data["ranks"]]
    return replace(job, ranks={e.rank: e for e in ranks}, duplicates=tuple(_thaw_rank(rank) for rank in data["duplicates"]))


def _freeze_rank(evidence: RankEvidence, slim: int) -> dict[str, Any]:
    """One rank; its calls are many and their stacks few, so these are written once and each call as a bare row."""
    log = evidence.collectives
    kept = evidence if slim < 2 else replace(evidence, calls=evidence.calls[-256:], samples=evidence.samples[-8:], helpers=())
    stacks: dict[Stack, int] = {}
    calls = [[stacks.setdefault(call.stack, len(stacks)), *(getattr(call, name) for name in _CALL)] for call in kept.calls]
    return {
        **{f.name: freeze(getattr(kept, f.name)) for f in fields(kept) if f.name not in ("collectives", "calls")},
        "calls": calls,
        "stacks": [freeze(stack) for stack in stacks],
        "signatures": [freeze(signature) for signature in log.signatures],
        "sites": [freeze(site) for site in log.sites],
        "is_partial": log.is_partial,
        "log": base64.b64encode(pack_log(log)).decode(),
    }


def _thaw_rank(data: dict[str, Any]) -> RankEvidence:
    evidence: RankEvidence = thaw(RankEvidence, {name: value for name, value in data.items() if name != "calls"})
    stacks = [thaw_stack(stack) for stack in data["stacks"]]
    calls = tuple(replace(thaw(Call, dict(zip(_CALL, row, strict=True))), stack=stacks[at]) for at, *row in data["calls"])
    signatures = [thaw(Signature, signature) for signature in data["signatures"]]
    log = unpack_log(base64.b64decode(data["log"]), signatures, [thaw_stack(site) for site in data["sites"]])
    log.is_partial = data["is_partial"] is True
    return replace(evidence, calls=calls, collectives=log)


def _thaw_finding(data: dict[str, Any]) -> Finding:
    plain = Finding.from_dict({**data, "culprits": (), "waiting": ()})
    culprits = tuple(thaw(Place, place) for place in data["culprits"][:10_000])
    return replace(plain, culprits=culprits, waiting=tuple(thaw(Wait, wait) for wait in data["waiting"][:10_000]))
