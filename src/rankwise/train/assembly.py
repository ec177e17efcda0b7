"""Leads the ranks through the stages: a stage is passed when all ranks have said so, and when one cannot go on, all are told.

The first rank that knows the outcome of a stage writes it to the store, for all. A rank that cannot go on writes its report, waits for
the ranks that can still report, and only then leaves; the rank whose process holds the store leaves last.
"""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import psutil
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from rankwise.errors import StartError, text_of_error
from rankwise.findings import Finding, Place, ranks_text
from rankwise.ranks import MeetingPlace
from rankwise.stages import REGISTRATION, STAGE_NAMED, Stage
from rankwise.train.errors import start_finding
from rankwise.train.rank_info import RankInfo
from rankwise.train.registration import Registration
from rankwise.train.store import OpenStore
from rankwise.train.store_client import StoreLost, pauses_s

logger = logging.getLogger("rankwise.session")

_HEAR_S = 5.0  # how long to wait for ranks that can still report
_LEAVE_S = 10.0
_LOOK_EVERY_S = 0.7


class Assembly:
    """One rank's part in the start-up of the job."""

    def __init__(self, opened: OpenStore, place: MeetingPlace, info: RankInfo) -> None:
        self._opened, self._place, self._info = opened, place, info
        self._store = opened.client
        self._store.find_loss = self._find_loss
        self._name = ""  # of this attempt: rank 0's id
        self.infos: list[RankInfo] = []  # the facts about all ranks, once all have registered
        self.notes: list[Finding] = []  # harmless differences between the ranks
        self._stage: Stage = REGISTRATION
        self._is_over = False
        self._looked_at, self._gone = 0.0, set[int]()
        self._num_present = 1  # ranks that can be reached, this one included

    def gather(self, timeout_s: float) -> None:
        """Register, and wait until every rank has; raises the same finding on every rank that is here."""
        registration = Registration(self._store, self._place, self._info)

        def leave_word(problem: Finding) -> None:
            self._name, self._num_present = registration.name, registration.num_present
            registration.leave_word(problem)

        with self._told_if_interrupted(leave_word):
            outcome = registration.run(timeout_s)
            self._name = registration.name
            self._num_present = outcome.get("present", self._info.world_size)
            if finding := outcome.get("finding"):
                self.stop(Finding.from_dict(finding))
            self.infos = [RankInfo(**info) for info in outcome["infos"]]
            self.notes = [Finding.from_dict(note) for note in outcome["notes"]]

    # -- the stages after it --------------------------------------------------------------------------------------------------

    def pass_stage(
        self, stage: Stage, timeout_s: float, is_done: Callable[[], bool] = lambda: True, note: str = "", visit: int = 0
    ) -> dict[str, Any]:
        """Say that this rank is through, and wait for all others; returns the outcome, which the last rank published.

        `is_done` is asked again and again until then. It may raise a StartError, which then all ranks raise."""
        self._stage, problem = stage, None
        base = f"rankwise/{self._name}/{stage.name}{visit or ''}"
        deadline = time.monotonic() + timeout_s
        has_said = False
        with self._told_if_interrupted(lambda problem: self._publish(base, problem, self._num_present - 1)):
            pauses = pauses_s()
            while True:
                problem = problem or self._find_absent(base)
                try:
                    is_through = problem is None and is_done()
                except StartError as error:
                    problem = error.finding
                if problem is not None:
                    self._publish(base, problem)
                elif is_through and not has_said:
                    has_said = True
                    self._say_through(base, note)
                if (outcome := self._store.look(base)) is not None:
                    break
                if time.monotonic() > deadline:
                    late = [info for info in self.infos if self._store.look(f"{base}/rank/{info.rank}") is None]
                    how = f"did not pass the stage {stage.done!r} within {timeout_s:.0f} s"
                    self._publish(base, self._find("RW126", late, how, "all other ranks are through and wait"))
                time.sleep(next(pauses))
        answer = dict(json.loads(outcome))
        if finding := answer.get("finding"):
            self._num_present = answer["present"]
            self.stop(Finding.from_dict(finding))
        return answer

    def _say_through(self, base: str, note: str) -> None:
        self._store.put(f"{base}/rank/{self._info.rank}", note or "yes")
        if self._store.add(f"{base}/count", 1) == self._info.world_size:
            notes: dict[str, list[int]] = {}
            for rank in range(self._info.world_size) if note else ():
                notes.setdefault(self._store.look(f"{base}/rank/{rank}") or "", []).append(rank)
            self._store.put_first(base, json.dumps({"notes": notes}))

    def _find_absent(self, base: str) -> Finding | None:
        """Now and then, look for ranks that will never do what the others wait for."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_EVERY_S:
            return None
        self._looked_at = now
        if left := self._left(base):
            self._num_present = self._info.world_size - len(left)
            how = f"left the session and did not pass the stage {self._stage.done!r}"
            return self._find("RW126", left, how, "the others made the call, and wait for it")
        if ended := self._ended():
            self._num_present = self._info.world_size - len(ended)
            why = "its process is gone and has told the others nothing: killed, out of memory, or crashed in native code"
            return self._find("RW110", ended, f"on {self._info.host} ended during start-up, after registering", why)
        return None

    def _left(self, base: str) -> list[RankInfo]:
        """Ranks that have left their session before all ranks were through."""
        key = f"rankwise/{self._name}/left"
        left = [info for info in self.infos if self._store.look(f"{key}/{info.rank}") is not None] if self._store.add(key, 0) else []
        return left if left and self._store.look(base) is None else []

    def _ended(self) -> list[RankInfo]:
        """Ranks of this host whose process is gone, on the second look: if a rank has reported an error of its own, that counts."""
        neighbours = [info for info in self.infos if info.host == self._info.host and info.rank != self._info.rank]
        before, self._gone = self._gone, {info.pid for info in neighbours if not psutil.pid_exists(info.pid)}
        return [info for info in neighbours if info.pid in before & self._gone]

    def _find(self, code: str, infos: list[RankInfo], how: str, why: str) -> Finding:
        summary = f"{ranks_text([info.rank for info in infos])} {how}"
        return start_finding(code, summary, (info.place for info in infos), why=why, stage=self._stage)

    @property
    def rank(self) -> int:
        return self._info.rank

    def post(self, key: str, value: str) -> None:
        """Write a value for the other ranks of this attempt."""
        self._store.put(f"rankwise/{self._name}/{key}", value)

    def read(self, key: str, timeout_s: float) -> str | None:
        """The value that another rank has posted; None if it has not in time."""
        return self._store.wait(f"rankwise/{self._name}/{key}", time.monotonic() + timeout_s)

    @property
    def connection(self) -> Store:
        """A second connection, below this attempt's name, for the process group, which blocks it while it waits."""
        return PrefixStore(f"rankwise/{self._name}/group", self._opened.connect())

    # -- telling and leaving --------------------------------------------------------------------------------------------------

    def stop(self, finding: Finding) -> NoReturn:
        """Log the finding, wait until all ranks that can still report have done so, leave, and raise it."""
        error = StartError(finding)
        at = f"{self._info.rank} ({self._info.host})"
        logger.error("rank %s: start-up failed, not passed: %s. %s %s", at, STAGE_NAMED[finding.stage].done, finding.code, finding.summary)
        try:
            heard = f"rankwise/{self._name}/heard"
            if self._store.add(heard, 1) >= self._num_present:
                self._store.put(f"{heard}/all", "yes")
            self._store.wait(f"{heard}/all", time.monotonic() + _HEAR_S)
            self.leave()
        except StoreLost:
            pass  # the store is gone, so there is nothing to wait for
        raise error

    def leave(self) -> None:
        """Say goodbye. The rank that holds the store waits for the others' goodbyes, so that no rank finds the store gone."""
        if self._is_over:
            return
        self._is_over = True
        key = f"rankwise/{self._name}/left"
        others = self._num_present - 1
        try:
            if not self._opened.is_ours:
                self._store.put(f"{key}/{self._info.rank}", "yes")
                self._store.add(key, 1)
                return
            deadline, pauses = time.monotonic() + _LEAVE_S, pauses_s()
            while self._store.add(key, 0) < others and time.monotonic() < deadline:
                time.sleep(next(pauses))
        except StoreLost:
            pass

    def note_failure(self, error: BaseException) -> None:
        """Tell the others if this rank failed first, because their own errors will only follow from this one; or note which rank did."""
        if isinstance(error, SystemExit) and not error.code:
            return
        with suppress(Exception):  # a frozen one takes neither this nor a note
            error._rankwise_failed_at = time.monotonic()  # type: ignore[attr-defined]  # `spawn` reads it
        key = f"rankwise/{self._name}/failed"
        try:
            if self._store.add(key, 1) == 1:
                last = traceback.extract_tb(error.__traceback__)[-1:]
                at = f" at {last[0].filename}:{last[0].lineno}" if last else ""
                said = f"{type(error).__name__}: {text_of_error(error)}{at}"
                self._store.put(f"{key}/first", f"rank {self._info.rank} on {self._info.host} with {said}")
            elif (first := self._store.look(f"{key}/first")) is not None:
                with suppress(Exception):
                    error.add_note(f"rankwise: this is not where it began: {first} failed first")
        except StoreLost:
            pass  # the store ended with the rank that failed first

    @contextmanager
    def _told_if_interrupted(self, tell: Callable[[Finding], None]) -> Iterator[None]:
        """Tell the other ranks, which would wait, if this rank leaves by an exception of its own or by Ctrl-C."""
        try:
            yield
        except StartError:
            raise
        except BaseException as error:
            how = f"{type(error).__name__}: {text_of_error(error)}".removesuffix(": ")
            summary = f"rank {self._info.rank} on {self._info.host} left during start-up: {how}"
            with suppress(StoreLost):
                tell(start_finding("RW110", summary, [self._info.place], stage=self._stage))
            self.leave()
            raise

    def _publish(self, base: str, finding: Finding, num_present: int | None = None) -> None:
        """Publish an outcome; the first one that any rank publishes counts for all."""
        outcome = {"finding": finding.to_dict(), "present": self._num_present if num_present is None else num_present}
        self._store.put_first(base, json.dumps(outcome))

    def _find_loss(self, said: str) -> Finding:
        keeper = "the launcher" if self._place.kept_by_launcher else "rank 0"
        return start_finding(
            "RW111",
            f"rank {self._info.rank} on {self._info.host} lost the store at {self._place}, which {keeper} keeps",
            () if self._place.kept_by_launcher else [info.place for info in self.infos if info.rank == 0] or [Place(rank=0)],
            why=f"{said}: {keeper} has ended, and its output says why, or the network between them was lost",
            stage=self._stage,
        )
