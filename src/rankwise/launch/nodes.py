"""Several nodes, one verdict: each watcher asks the others for their evidence and judges the whole job; all adopt the first verdict.

The messages go through `store_relay`, a separate process; messages of other nodes are not trusted.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankwise.diagnose.no_ranks import option_of
from rankwise.evidence.records import JobEvidence
from rankwise.launch.node_messages import UNREADABLE, Verdict, pack_job, pack_verdict, unpack_verdict
from rankwise.launch.observe import Observer
from rankwise.launch.peers import Peer, lost_job, merge_jobs
from rankwise.launch.plan import RunPlan
from rankwise.launch.starting import joined_ranks
from rankwise.launch.store_relay import poll_interval_s, read_frame, write_frame

_SILENT_S = 6.0  # a node that has not answered for so long is lost
_ANSWER_S = 6.0
_JOIN_S = 30.0
_END_WAIT_S = 9.0
_END_ANSWER_S = 4.0
_LEAVE_S = 5.0
_HURRY_S = 1.0
_PORTS = {"c10d": 29400, "static": 29500}

Look = Callable[[str], JobEvidence]
Sent = tuple[dict[str, Any], bytes]
Received = tuple[dict[str, Any], bytes, float, int]  # a message and when it came, by two clocks


class OneNode:
    """A job on this node alone: it asks no other node."""

    def __init__(self) -> None:
        self._asked: JobEvidence | None = None

    def turn(self) -> None:
        """Called at every look: receive messages and answer nodes that ask."""

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
        """The verdict of another node that has stopped the job as hung: this node has to stop as well."""
        return None

    def publish(self, verdict: Verdict) -> Verdict:
        """Send the verdict to all nodes; returns the one they all adopt, which is another node's where that came first."""
        return verdict

    def last_job(self, job: JobEvidence, is_hurried: bool) -> JobEvidence:
        """The evidence of all nodes after this node's job has ended; when hurried, waits less for the others."""
        return job

    def other_nodes(self) -> list[Peer]:
        """The other nodes that have sent a status."""
        return []

    def leave(self) -> None:
        """Wait until the others have read the last message, then end."""


def join_nodes(plan: RunPlan, observer: Observer, look: Look) -> OneNode:
    """Meet the other nodes of the job where torchrun meets them; one node needs no meeting."""
    place = meeting_place(plan)
    return SeveralNodes(place, plan.num_nodes, observer, look) if place else OneNode()


def meeting_place(plan: RunPlan) -> tuple[str, int, str] | None:
    """Host, port and key prefix of the rendezvous store; None where there is no such store."""
    backend = option_of(plan.command, "--rdzv-backend") or "static"
    if plan.style != "torchrun" or plan.num_nodes < 2 or not plan.endpoint or backend not in _PORTS:
        return None
    host, _, port = plan.endpoint.rpartition(":")
    if not port.isdigit():
        host, port = plan.endpoint, str(_PORTS[backend])
    return host.strip("[]"), int(port), f"rankwise/{plan.job_id}"


class SeveralNodes(OneNode):
    """The watcher's side of a job on several nodes."""

    def __init__(self, place: tuple[str, int, str], num_nodes: int, observer: Observer, look: Look) -> None:
        super().__init__()
        self._place, self._num_nodes, self._observer, self._look = place, num_nodes, observer, look
        self._host = os.uname().nodename
        self._started_s = time.monotonic()
        self._number = 0
        self._peers: dict[int, Peer] = {}
        self._channels: dict[str, tuple[float, int]] = {}  # working channel: when last heard, and the serial written there
        self._verdicts: dict[str, tuple[float, Verdict | None]] = {}  # channel: when its verdict was seen, and the verdict
        self._status: dict[str, Any] = {}
        self._serial, self._ask, self._version = 0, 0, 0
        self._depth = "flight"
        self._answers: dict[int, int] = {}
        self._posts: dict[str, bytes] = {}
        self._ranks: dict[int, int] = {}  # of this node
        self._joined: list[int] = []  # of those, the ranks that have called init_process_group
        self._restarted_ns = 0  # when the present processes replaced earlier ones
        self._counted_s = 0.0
        self._looked_s = 0.0
        self._asked_s = 0.0
        self._resting: dict[int, int] = {}
        self._num_unanswered = 0
        self._reported_lost: set[int] = set()
        self._code: int | None = None
        self._is_final = False
        self._is_complete, self._is_hurried = True, False
        self._start_relay()

    # -- the relay process --------------------------------------------------------------------------------------------------

    def _start_relay(self) -> None:
        host, port, prefix = self._place
        self._relay = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("store_relay.py")), host, str(port), prefix, str(self._number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._inbox: queue.SimpleQueue[Received] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Sent | None] = queue.SimpleQueue()
        threading.Thread(target=_receive, args=(self._relay, self._inbox), name="from relay", daemon=True).start()
        threading.Thread(target=_deliver, args=(self._relay, self._outbox), name="to relay", daemon=True).start()

    def _send(self, post: str = "") -> None:
        """Give the relay this node's status, and a snapshot or verdict to post with it."""
        self._serial += 1
        self._outbox.put(({"status": {**self._status, "serial": self._serial}, "post": post}, self._posts.get(post, b"")))

    def _receive_news(self) -> None:
        """Take all messages that came since the last time."""
        while not self._inbox.empty():
            with contextlib.suppress(*UNREADABLE):  # an unreadable message does not stop the others
                self._take_news(*self._inbox.get())

    def _take_news(self, facts: dict[str, Any], body: bytes, now_s: float, now_ns: int) -> None:
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

    def other_nodes(self) -> list[Peer]:
        return list(self._peers.values())

    # -- every look -----------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        self._receive_news()
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
        self._joined = sorted(joined_ranks(self._observer))

    def _update_status(self) -> None:
        self._count_ranks()
        if (status := self._own_status()) != self._status:
            self._status = status
            self._send()

    def _own_status(self) -> dict[str, Any]:
        status = {"host": self._host, "ranks": self._ranks, "joined": self._joined, "final": self._is_final, "code": self._code}
        return {**status, "ask": self._ask, "depth": self._depth, "answers": self._answers, "version": self._version}

    def _post(self, job: JobEvidence) -> None:
        """Post what this node sees for the others."""
        self._looked_s = time.monotonic()
        self._posts["snapshot"] = pack_job(job)
        self._version += 1
        self._status = self._own_status()
        self._send("snapshot")

    def wanted_depth(self) -> str:
        lost = {peer.number for peer in self._current() if self._is_lost(peer)}
        if lost <= self._reported_lost:
            return ""
        self._reported_lost = lost
        return "flight"

    # -- asking ---------------------------------------------------------------------------------------------------------------

    def can_ask(self) -> bool:
        """False also once all ranks here have ended: nothing hangs any more."""
        return self._asked is None and not self._have_ranks_ended()

    def _have_ranks_ended(self) -> bool:
        return bool(self._ranks) and not any(self._observer.is_alive(pid) for pid in self._ranks.values())

    def ask(self, job: JobEvidence, depth: str) -> None:
        """Ask, and post `job`: it also answers the others' questions known at the last turn, which are older than it."""
        self._asked, self._asked_s = job, time.monotonic()
        self._resting = {pid: ns for pid, ns in self._observer.moved_ns.items() if job.now_ns - ns > 1e9}
        self._ask, self._depth = self._ask + 1, depth
        self._answers = {peer.number: peer.ask for peer in self._peers.values()}
        self._post(job)

    def whole_job(self) -> JobEvidence | None:
        self._receive_news()
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
        """Whether ranks are still missing whose nodes had too little time to be heard of."""
        complete = len(self._peers) + 1 >= self._num_nodes or sum(len(p.ranks) for p in self._peers.values()) + len(job.ranks) >= (
            job.world_size or 0
        )
        return not complete and time.monotonic() - self._started_s < _JOIN_S and self._relay.poll() is None

    def _has_moved_since(self) -> bool:
        """Whether a rank that rested when the question was asked moves again: then its evidence no longer fits the others'."""
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
        """The nodes that belong to the job now: without nodes the job went on without, and old numbers of nodes that came back."""
        heard = sorted((peer for peer in self._peers.values() if peer.heard_ns), key=lambda peer: peer.number)
        return [peer for peer in heard if not (self._is_silent(peer) or peer.is_final) or not self._is_past(peer, heard)]

    def _is_past(self, peer: Peer, heard: list[Peer]) -> bool:
        came_back = any(other.host == peer.host and other.first_ns > peer.heard_ns for other in heard)
        return came_back or peer.heard_ns < self._restarted_ns

    def _is_lost(self, peer: Peer) -> bool:
        return self._is_silent(peer) and not peer.is_final

    def _is_silent(self, peer: Peer) -> bool:
        """Whether a node has sent nothing for long although we looked several times, or no store is left to look at."""
        limit = _SILENT_S + 4 * poll_interval_s(len(self._peers))
        if time.monotonic() - peer.heard_s < limit or self._relay.poll() is not None:
            return False
        return peer.num_polls >= 4 or not self._living_channels()

    # -- the verdict ----------------------------------------------------------------------------------------------------------

    def stop_order(self) -> Verdict | None:
        """As in `OneNode`; where the ranks here have already ended, their launcher gets time to end by itself, with its own code."""
        agreed = self._agreed()
        if agreed is None or agreed.outcome != "hung":
            return None
        first_s = min(seen_s for seen_s, _ in self._verdicts.values())
        return agreed if self._is_stopped_by(agreed) or time.monotonic() - first_s > _END_WAIT_S else None

    def _is_stopped_by(self, agreed: Verdict) -> bool:
        return agreed.outcome == "hung" and any(e.alive for rank, e in agreed.job.ranks.items() if rank in self._ranks)

    def _agreed(self) -> Verdict | None:
        """The verdict that all nodes adopt: each channel keeps its first one, and of these the author with the lowest number wins."""
        self._receive_news()
        known = {self._number, *(peer.number for peer in self._current())}
        seen = [verdict for _, verdict in self._verdicts.values() if verdict is not None and verdict.author in known]
        if not seen:
            return None
        first_s = min(seen_s for seen_s, _ in self._verdicts.values())
        if not self._living_channels() <= set(self._verdicts) and time.monotonic() - first_s < 1.0:
            return None
        return min(seen, key=lambda verdict: verdict.author)

    def publish(self, verdict: Verdict) -> Verdict:
        self._receive_news()
        is_worth_it = bool(verdict.findings) and (verdict.outcome == "hung" or self._is_complete)
        if not self._peers or not (is_worth_it or self._verdicts) or self._relay.poll() is not None:
            return verdict
        if not self._verdicts:
            self._posts["verdict"] = pack_verdict(replace(verdict, author=self._number))
            self._send("verdict")
        _wait(lambda: self._agreed() is not None, 2.0)
        agreed = self._agreed() or verdict
        # A job that ended by itself on this node was not stopped, whatever happened on the others.
        return replace(agreed, outcome="hung" if self._is_stopped_by(agreed) else verdict.outcome)

    # -- the end --------------------------------------------------------------------------------------------------------------

    def last_job(self, job: JobEvidence, is_hurried: bool) -> JobEvidence:
        self._receive_news()
        self._is_final, self._is_hurried, self._code = True, is_hurried, job.exit_code
        self._ask, self._depth = self._ask + 1, "flight"
        self._answers = {peer.number: peer.ask for peer in self._peers.values()}
        self._update_status()
        self._post(job)
        started_s, limit_s = time.monotonic(), _HURRY_S if is_hurried else _END_WAIT_S if job.exit_code else _END_ANSWER_S
        self._is_complete = _wait(lambda: self._have_all_reported(time.monotonic() - started_s, bool(job.exit_code)), limit_s)
        return self._merged(job)

    def _have_all_reported(self, waited_s: float, has_failed: bool) -> bool:
        """Whether every node has ended, is lost, or has said what it sees; after a failure, nodes not yet heard of count too."""
        self._receive_news()
        if self._relay.poll() is not None or self._agreed() is not None:
            return True
        if has_failed and len(self._peers) + 1 < self._num_nodes and waited_s < 2.0:
            return False
        still_there = [peer for peer in self._current() if not peer.is_final and not self._is_lost(peer)]
        if any(peer.fetched < peer.version for peer in self._current() if peer.is_final):
            return False
        return (waited_s > _END_ANSWER_S and all(peer.has_answered(self._number, self._ask) for peer in still_there)) or not still_there

    def leave(self) -> None:
        """Stay for a while until the others are done: our store may be the last one that they can read."""
        self._is_final = True
        self._update_status()
        _wait(self._is_heard, 1.5)
        _wait(self._are_others_done, _HURRY_S if self._is_hurried else _LEAVE_S)
        self._outbox.put(None)
        try:
            self._relay.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self._relay.kill()
            self._relay.wait()

    def _is_heard(self) -> bool:
        self._receive_news()
        living = self._living_channels()
        return self._relay.poll() is not None or not self._number or all(self._channels[name][1] >= self._serial for name in living)

    def _are_others_done(self) -> bool:
        self._receive_news()
        return self._relay.poll() is not None or all(peer.is_final or self._is_lost(peer) for peer in self._current())


def _receive(relay: subprocess.Popen[bytes], inbox: queue.SimpleQueue[Received]) -> None:
    """Take in what the relay sends, in a thread: the relay must never block on a full pipe while the watcher is busy."""
    assert relay.stdout is not None
    try:
        with contextlib.suppress(OSError, ValueError), relay.stdout:
            while (frame := read_frame(relay.stdout)) is not None:
                inbox.put((*frame, time.monotonic(), time.time_ns()))
    finally:  # without this thread nothing the relay sends is read
        relay.kill()


def _deliver(relay: subprocess.Popen[bytes], outbox: queue.SimpleQueue[Sent | None]) -> None:
    """Give the relay what the watcher sends, in a thread: the watcher must never block on a relay that was stopped."""
    assert relay.stdin is not None
    with contextlib.suppress(OSError, ValueError), relay.stdin:
        while (frame := outbox.get()) is not None:
            write_frame(relay.stdin, *frame)


def _wait(is_done: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not (done := is_done()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return done
