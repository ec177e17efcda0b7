"""Registration: every rank writes its info to the store, rank 0 answers, compares, and publishes one outcome for all.

Every process has a name of its own (the id in its info). A launcher's store outlives the ranks, and what a rank of an earlier attempt has
written there must not count in this attempt. So rank 0 replies to each info, to that very process, and a process is present once it
confirms the reply. From then on all keys begin with rank 0's id, which is the name of the attempt.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, replace
from typing import Any

from rankwise.findings import Finding, Place
from rankwise.meet.network import is_loopback
from rankwise.ranks import MeetingPlace
from rankwise.train.errors import start_finding
from rankwise.train.rank_info import RankInfo
from rankwise.train.rollcall import (
    find_contradiction,
    find_device_problem,
    find_differences,
    find_missing,
    find_unreachable_address,
    registered_text,
)
from rankwise.train.store_client import TELL_AFTER_S, TELL_EVERY_S, StoreClient

logger = logging.getLogger("rankwise.session")

_QUIET_S = 0.1  # the infos are compared after so long without news, not at every single one
_SETTLE_S = 2.0  # how long to wait for late ranks when it is already known that the job cannot start
_SKIP_S = 5.0  # a rank needs a fraction of this between taking a number and writing under it
_GRACE_S = 5.0  # how much longer than its own deadline a rank waits for rank 0's answer


class Registration:
    """One rank's part in the registration."""

    def __init__(self, client: StoreClient, place: MeetingPlace, info: RankInfo) -> None:
        self._store, self._place, self._info = client, place, info
        self._waiting: dict[str, RankInfo] = {}  # answered, not confirmed yet
        self._present = {info.id: info}
        self.name = info.id if info.rank == 0 else ""
        self.num_present = 1  # ranks that can be reached, this one included

    def run(self, timeout_s: float) -> dict[str, Any]:
        """The outcome: the infos of all ranks and what differs; or the finding that all raise, and how many ranks can be told."""
        deadline = time.monotonic() + timeout_s
        self._write_event({"info": asdict(self._info)})
        return self._lead(deadline, timeout_s) if self._info.rank == 0 else self._follow(deadline, timeout_s)

    def leave_word(self, problem: Finding) -> None:
        """Tell the others that this rank leaves before the registration is over, and why."""
        if self._info.rank == 0:
            self._publish({"finding": problem.to_dict(), "present": self.num_present - 1})
        else:
            self._write_event({"gone": self._info.id, "problem": problem.to_dict()})

    # -- rank 0 ---------------------------------------------------------------------------------------------------------------

    def _lead(self, deadline: float, timeout_s: float) -> dict[str, Any]:
        number, began, is_wrong, has_news = 0, time.monotonic(), False, True
        tell_at, heard_at = began + TELL_AFTER_S, began
        while len(self._present) < max(info.world_size for info in self._present.values()):
            event = self._store.wait(
                f"rankwise/event/{number + 1}", min(deadline, tell_at, time.monotonic() + (_QUIET_S if has_news else 1.0))
            )
            now, infos = time.monotonic(), list(self._present.values())
            if event is not None or (now - heard_at > _SKIP_S and self._is_skipped(number + 1)):
                number, heard_at = number + 1, now
                self._take(json.loads(event or "{}"))
                has_news = True
            elif has_news:
                has_news = False
                if not is_wrong and find_contradiction(infos):
                    is_wrong, deadline = True, min(deadline, now + _SETTLE_S)
            elif now >= deadline:
                break
            elif now >= tell_at:
                tell_at = now + TELL_EVERY_S
                logger.warning(registered_text(infos, self._info.world_size, now - began))
        return self._publish(self._judged(timeout_s))

    def _is_skipped(self, number: int) -> bool:
        """Whether the writer of this number was killed before it wrote: then a later number has been written."""
        return self._store.look(f"rankwise/event/{number + 1}") is not None

    def _take(self, event: dict[str, Any]) -> None:
        """Take one event: an info gets a reply; a process that confirms the reply is present; one that leaves is noted as gone."""
        if "info" in event:
            info = RankInfo.from_dict(event["info"])
            if info.id != self._info.id and info.job == self._info.job:
                self._waiting[info.id] = info
                self._reply(info, {"attempt": self.name})
                if info.rank == 0:  # another rank 0 sends no confirmation, because it waits for confirmations itself
                    self._write_event({"here": self._info.id, "attempt": info.id})
        elif event.get("attempt") == self.name and event.get("here") in self._waiting:
            self._present[event["here"]] = self._waiting.pop(event["here"])
        elif (gone := self._present.get(event.get("gone", "")) or self._waiting.get(event.get("gone", ""))) is not None:
            self._present[gone.id] = replace(gone, problem=event["problem"], is_gone=True)
        self.num_present = sum(not info.is_gone for info in self._present.values())

    def _judged(self, timeout_s: float) -> dict[str, Any]:
        infos = sorted(self._present.values(), key=lambda info: (info.rank, info.id))
        finding = find_contradiction(infos)
        if finding is None and len(infos) < self._info.world_size:
            finding = find_missing(infos, self._info.world_size, timeout_s, str(self._place))
            address = self._place.address
            if not self._place.kept_by_launcher and (address == "localhost" or is_loopback(address)):
                why = f"{finding.why}; MASTER_ADDR={address} is {self._info.host} alone: ranks on other hosts need one that reaches it"
                finding = replace(finding, why=why)
        notes = find_differences(infos)
        finding = finding or find_device_problem(infos) or find_unreachable_address(infos)
        finding = finding or next((note for note in notes if note.severity == "error"), None)
        if finding:
            return {"finding": finding.to_dict(), "present": self.num_present}
        return {"infos": [info.shortened() for info in infos], "notes": [note.to_dict() for note in notes]}

    # -- the others -----------------------------------------------------------------------------------------------------------

    def _follow(self, deadline: float, timeout_s: float) -> dict[str, Any]:
        text = f"rank {self._info.rank} on {self._info.host} is registered and waits for rank 0, %.0f s"
        reply = self._store.wait(f"rankwise/reply/{self._info.id}", deadline, lambda waited_s: logger.warning(text, waited_s))
        if reply is None:
            self._raise_alarm(timeout_s)
            reply = self._store.wait(f"rankwise/reply/{self._info.id}", deadline + _GRACE_S)
        answer = json.loads(reply or "{}")
        self.name = answer.get("attempt", self._info.id)
        if "finding" in answer:
            return dict(answer)
        self._write_event({"here": self._info.id, "attempt": self.name})
        if self._info.problem and self._info.problem["code"] == "RW608":  # large packets get lost, and the outcome is large
            return {"finding": self._info.problem, "present": self._info.world_size}
        outcome = self._store.wait(f"rankwise/{self.name}/registration", deadline + _GRACE_S)
        if outcome is not None:
            return dict(json.loads(outcome))
        summary = "rank 0 registered and then stopped answering before every rank had"
        finding = start_finding("RW110", summary, [Place(rank=0)], certain=False)
        return self._publish({"finding": finding.to_dict(), "present": self._info.world_size})

    def _raise_alarm(self, timeout_s: float) -> None:
        """Called when the launcher keeps the store and rank 0 never came. The first rank whose time is over tells all registered ranks."""
        infos = self._registered()
        finding = find_missing(infos, self._info.world_size, timeout_s, str(self._place))
        for info in infos:
            self._reply(info, {"finding": finding.to_dict(), "attempt": self._info.id, "present": len(infos)})

    def _registered(self) -> list[RankInfo]:
        """The infos of all ranks that have written one; a rank that its launcher started again counts once."""
        latest: dict[tuple[str, int, int], RankInfo] = {}
        for number in range(1, self._store.add("rankwise/events", 0) + 1):
            event = json.loads(self._store.look(f"rankwise/event/{number}") or "{}")
            if "info" in event:
                info = RankInfo.from_dict(event["info"])
                latest[info.host, info.launcher, info.rank] = info
        return list(latest.values())

    # -- writing --------------------------------------------------------------------------------------------------------------

    def _write_event(self, event: dict[str, Any]) -> None:
        number = self._store.add("rankwise/events", 1)
        self._store.put(f"rankwise/event/{number}", json.dumps(event))

    def _reply(self, info: RankInfo, reply: dict[str, Any]) -> None:
        """The first reply counts: two ranks that run out of time together must not contradict each other."""
        self._store.put_first(f"rankwise/reply/{info.id}", json.dumps(reply))

    def _publish(self, outcome: dict[str, Any]) -> dict[str, Any]:
        """Publish an outcome and return the one that counts: the first that any rank has published."""
        return dict(json.loads(self._store.put_first(f"rankwise/{self.name}/registration", json.dumps(outcome))))
