"""Brings the ranks together in the store, keeps them in step through the stages, and tells all of them when one cannot go on.

Rank 0 leads the roll-call. Every process has a name of its own (its card's id), because a launcher's store outlives the ranks: what a rank
of an earlier attempt has written there must not be taken for one of this attempt. So the leader answers each card with a letter to that
very process, and only who confirms the letter is present. From then on all keys are below the leader's id, and a stage is passed when
every rank has said so. Waiting is asking again: torch's own blocking wait logs each timeout, and holds off Ctrl-C.
"""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, NoReturn, TypeVar

import psutil
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from rankwise.causes import load_cause
from rankwise.errors import StartError
from rankwise.findings import Finding, Place, ranks_text
from rankwise.ranks import MeetingPlace
from rankwise.stages import REGISTRATION, STAGE_NAMED, Stage
from rankwise.train.board import BoardLost
from rankwise.train.cards import Card
from rankwise.train.rollcall import (
    find_contradiction,
    find_device_problem,
    find_differences,
    find_missing,
    find_unreachable_address,
    likely_host,
)
from rankwise.train.store import OpenStore

logger = logging.getLogger("rankwise.session")
Answer = TypeVar("Answer")

_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.05
_TELL_AFTER_S = 3.0
_TELL_EVERY_S = 10.0
_HEAR_S = 5.0  # how long those who can still report are waited for
_LEAVE_S = 10.0
_LOOK_EVERY_S = 0.7
_SETTLE_S = 2.0  # how long ranks that are just arriving are waited for when it is already known that the job cannot start
_GRACE_S = 5.0  # how much longer than its own deadline a rank waits for the leader's word


class Assembly:
    """One rank's seat at the table."""

    def __init__(self, opened: OpenStore, place: MeetingPlace, card: Card) -> None:
        self._opened, self._place, self._card = opened, place, card
        self._board = opened.board
        self._name = ""  # of this gathering: the leader's id
        self.cards: list[Card] = []  # who is here, once the roll-call is over
        self.notes: list[Finding] = []  # what differs without being in the way
        self._stage: Stage = REGISTRATION
        self._is_over = False
        self._looked_at, self._gone = 0.0, set[int]()
        self._num_present = 1  # those that can be told, this one included

    # -- roll-call ------------------------------------------------------------------------------------------------------------

    def gather(self, timeout_s: float) -> None:
        """Register, and wait until every rank has; raises the same finding on every rank that is here."""
        deadline = time.monotonic() + timeout_s
        with self._told_if_interrupted():
            self._write_event({"card": asdict(self._card)})
            outcome = self._lead(deadline, timeout_s) if self._card.rank == 0 else self._follow(deadline, timeout_s)
            if finding := outcome.get("finding"):
                self._stop(Finding.from_dict(finding), outcome["present"])
            self._num_present = self._card.world_size
            self.cards = [Card(**card) for card in outcome["cards"]]
            self.notes = [Finding.from_dict(note) for note in outcome["notes"]]

    def _lead(self, deadline: float, timeout_s: float) -> dict[str, Any]:
        self._name = self._card.id
        waiting: dict[str, Card] = {}
        present = {self._card.id: self._card}
        world_size, number, began = self._card.world_size, 0, time.monotonic()
        told_at = began - _TELL_EVERY_S + _TELL_AFTER_S
        is_wrong = False
        while len(present) < world_size:
            event = self._ask(f"rankwise/event/{number + 1}", min(deadline, told_at + _TELL_EVERY_S))
            now = time.monotonic()
            if event is not None:
                number += 1
                self._take(json.loads(event), waiting, present)
                self._num_present = sum(not card.is_gone for card in present.values())
            elif now >= deadline and is_wrong:
                break
            elif now >= deadline:
                missing = find_missing(list(present.values()), world_size, timeout_s, str(self._place))
                return self._publish(self._stopped(missing))
            else:
                told_at = now
                logger.warning(waiting_text(list(present.values()), world_size, now - began))
            if not is_wrong and find_contradiction(list(present.values()), world_size):
                is_wrong, deadline = True, min(deadline, now + _SETTLE_S)
        return self._publish(self._judged(list(present.values())))

    def _take(self, event: dict[str, Any], waiting: dict[str, Card], present: dict[str, Card]) -> None:
        """A card is answered with a letter; a confirmed letter makes its writer present; who leaves before is told to all."""
        if "card" in event:
            card = Card.from_dict(event["card"])
            if card.id != self._card.id and card.job == self._card.job:
                waiting[card.id] = card
                self._write_letter(card, {"gathering": self._name})
        elif event.get("gathering") == self._name and event.get("here") in waiting:
            present[event["here"]] = waiting.pop(event["here"])
        elif event.get("gone") in present or event.get("gone") in waiting:
            card = present.get(event["gone"]) or waiting[event["gone"]]
            present[card.id] = replace(card, problem=event["problem"], is_gone=True)

    def _judged(self, cards: list[Card]) -> dict[str, Any]:
        cards.sort(key=lambda card: card.rank)
        notes = find_differences(cards)
        finding = find_contradiction(cards, self._card.world_size) or find_device_problem(cards) or find_unreachable_address(cards)
        finding = finding or next((note for note in notes if note.severity == "error"), None)
        if finding:
            return self._stopped(finding)
        return {"cards": [card.shortened() for card in cards], "notes": [note.to_dict() for note in notes]}

    def _follow(self, deadline: float, timeout_s: float) -> dict[str, Any]:
        letter = self._ask(f"rankwise/letter/{self._card.id}", deadline, self._tell_leaderless)
        if letter is None:
            self._raise_alarm(timeout_s)
            letter = self._ask(f"rankwise/letter/{self._card.id}", deadline + _GRACE_S)
        answer = json.loads(letter or "{}")
        self._name = answer.get("gathering", self._card.id)
        if "finding" in answer:
            return dict(answer)
        self._write_event({"here": self._card.id, "gathering": self._name})
        if self._card.problem and self._card.problem["code"] == "RW608":  # the outcome, a large answer, would not arrive here
            return {"finding": self._card.problem, "present": self._card.world_size}
        outcome = self._ask(f"rankwise/{self._name}/registration", deadline + _GRACE_S)
        return dict(json.loads(outcome)) if outcome else self._publish(self._leader_silent())

    def _tell_leaderless(self, waited_s: float) -> None:
        logger.warning("rank %d on %s is registered and waits for rank 0, %.0f s", self._card.rank, self._card.host, waited_s)

    def _raise_alarm(self, timeout_s: float) -> None:
        """The launcher keeps the store and rank 0 never came: whoever runs out of time first tells all that are registered."""
        cards = self._registered()
        finding = find_missing(cards, self._card.world_size, timeout_s, str(self._place))
        for card in cards:
            self._write_letter(card, {"finding": finding.to_dict(), "gathering": self._card.id, "present": len(cards)})

    def _registered(self) -> list[Card]:
        """The cards on the table; a rank that its launcher started again counts once."""
        latest: dict[tuple[str, int, int], Card] = {}
        for number in range(1, self._call(lambda: self._board.add("rankwise/events", 0)) + 1):
            event = json.loads(self._now(f"rankwise/event/{number}") or "{}")
            if "card" in event:
                card = Card.from_dict(event["card"])
                latest[card.host, card.launcher, card.rank] = card
        return list(latest.values())

    def _leader_silent(self) -> dict[str, Any]:
        summary = "rank 0 registered and then stopped answering before every rank had"
        finding = load_cause("RW110").finding(summary, certain=False, culprits=(Place(rank=0),), stage=REGISTRATION.name)
        return self._stopped(finding)

    def _stopped(self, finding: Finding) -> dict[str, Any]:
        return {"finding": finding.to_dict(), "present": self._num_present}

    # -- the stages after it --------------------------------------------------------------------------------------------------

    def pass_stage(self, stage: Stage, timeout_s: float, problem: Finding | None = None, note: str = "", visit: int = 0) -> dict[str, Any]:
        """Say that this rank is through (or why not) and wait for all others; returns what the last one published."""
        return self.await_stage(stage, timeout_s, lambda: True, problem, note, visit)

    def await_stage(
        self, stage: Stage, timeout_s: float, is_done: Callable[[], bool], problem: Finding | None = None, note: str = "", visit: int = 0
    ) -> dict[str, Any]:
        """The same while this rank is still at it: `is_done` is asked again and again, and may raise a StartError that all shall hear."""
        self._stage = stage
        base = f"rankwise/{self._name}/{stage.name}{visit or ''}"
        deadline = time.monotonic() + timeout_s
        has_said = False
        with self._told_if_interrupted(base):
            pauses = _pauses()
            while True:
                problem = problem or self._find_ended()
                try:
                    is_through = problem is None and is_done()
                except StartError as error:
                    problem = error.finding
                if problem is not None:
                    self._publish(self._stopped(problem), base)
                elif is_through and not has_said:
                    has_said = True
                    self._say_through(base, note)
                if (outcome := self._now(base)) is not None:
                    break
                if time.monotonic() > deadline:
                    self._publish(self._stopped(self._late(stage, base, timeout_s)), base)
                time.sleep(next(pauses))
        answer = dict(json.loads(outcome))
        if finding := answer.get("finding"):
            self._stop(Finding.from_dict(finding), answer["present"])
        return answer

    def _say_through(self, base: str, note: str) -> None:
        self._call(lambda: self._board.put(f"{base}/rank/{self._card.rank}", note or "yes"))
        if self._call(lambda: self._board.add(f"{base}/count", 1)) == self._card.world_size:
            notes: dict[str, list[int]] = {}
            for rank in range(self._card.world_size) if note else ():
                notes.setdefault(self._now(f"{base}/rank/{rank}") or "", []).append(rank)
            self._publish({"notes": notes}, base)

    def _find_ended(self) -> Finding | None:
        """A rank of this host whose process is gone; it had a moment to say itself why, and that counts before this."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_EVERY_S:
            return None
        self._looked_at = now
        neighbours = [card for card in self.cards if card.host == self._card.host and card.rank != self._card.rank]
        gone = {card.pid for card in neighbours if not psutil.pid_exists(card.pid)}
        ended, self._gone = [card for card in neighbours if card.pid in gone & self._gone], gone
        if not ended:
            return None
        self._num_present = self._card.world_size - len(ended)
        return load_cause("RW110").finding(
            f"{ranks_text([card.rank for card in ended])} on {self._card.host} ended during start-up, after registering",
            certain=True,
            culprits=tuple(card.place for card in ended),
            why="its process is gone and has told the others nothing: killed, out of memory, or crashed in native code",
            stage=self._stage.name,
        )

    def _late(self, stage: Stage, base: str, timeout_s: float) -> Finding:
        late = [card for card in self.cards if self._now(f"{base}/rank/{card.rank}") is None]
        return load_cause("RW126").finding(
            f"{ranks_text([card.rank for card in late])} did not pass the stage {stage.done!r} within {timeout_s:.0f} s",
            certain=True,
            culprits=tuple(card.place for card in late[:64]),
            why="all other ranks are through and wait",
            stage=stage.name,
        )

    @property
    def rank(self) -> int:
        return self._card.rank

    def stop(self, finding: Finding) -> NoReturn:
        """Leave with a finding that every rank has come to by itself."""
        self._stop(finding, self._num_present)

    def post(self, key: str, value: str) -> None:
        """Leave something for the others of this gathering."""
        self._call(lambda: self._board.put(f"rankwise/{self._name}/{key}", value))

    def read(self, key: str, timeout_s: float) -> str | None:
        """What another rank has posted; None if it has not within the time."""
        return self._ask(f"rankwise/{self._name}/{key}", time.monotonic() + timeout_s)

    @property
    def connection(self) -> Store:
        """A connection of its own below this gathering's name, for the process group: it blocks on it."""
        return PrefixStore(f"rankwise/{self._name}/group", self._opened.connect())

    # -- telling and leaving --------------------------------------------------------------------------------------------------

    def _stop(self, finding: Finding, num_present: int) -> NoReturn:
        """Report here, say so, wait for those that can still report, and only then leave with the finding."""
        error = StartError(finding)
        at = f"{self._card.rank} ({self._card.host})"
        logger.error("rank %s: start-up failed, not passed: %s. %s %s", at, STAGE_NAMED[finding.stage].done, finding.code, finding.summary)
        try:
            heard = f"rankwise/{self._name}/heard"
            if self._call(lambda: self._board.add(heard, 1)) >= num_present:
                self._call(lambda: self._board.put(f"{heard}/all", "yes"))
            self._ask(f"{heard}/all", time.monotonic() + _HEAR_S)
            self.leave(num_present)
        except StartError:
            pass  # the store is gone, and with it whoever could be waited for
        raise error

    def leave(self, num_present: int | None = None) -> None:
        """Say goodbye; the rank that holds the store waits for the others' goodbyes, so that nobody finds it gone."""
        if self._is_over:
            return
        self._is_over = True
        key = f"rankwise/{self._name}/left"
        others = (num_present or self._num_present) - 1
        try:
            if not self._opened.is_ours:
                self._board.add(key, 1)
                return
            deadline, pauses = time.monotonic() + _LEAVE_S, _pauses()
            while self._board.add(key, 0) < others and time.monotonic() < deadline:
                time.sleep(next(pauses))
        except BoardLost:
            pass

    def note_failure(self, error: BaseException) -> None:
        """Which rank failed first: told to the others while their own errors, which follow from it, are still on their way."""
        error._rankwise_failed_at = time.monotonic()  # type: ignore[attr-defined]  # read by spawn
        key = f"rankwise/{self._name}/failed"
        try:
            if self._board.add(key, 1) == 1:
                last = traceback.extract_tb(error.__traceback__)[-1:]
                at = f" at {last[0].filename}:{last[0].lineno}" if last else ""
                self._board.put(f"{key}/first", f"rank {self._card.rank} on {self._card.host} with {type(error).__name__}: {error}{at}")
            elif (first := self._board.look(f"{key}/first")) is not None:
                error.add_note(f"rankwise: this is not where it began: {first} failed first")
        except BoardLost:
            pass  # the store went with the rank that failed first

    @contextmanager
    def _told_if_interrupted(self, base: str = "") -> Iterator[None]:
        """A rank that leaves by an exception of its own, or by Ctrl-C, says so to those that would wait for it."""
        try:
            yield
        except StartError:
            raise
        except BaseException as error:
            how = f"{type(error).__name__}: {error}".removesuffix(": ")
            problem = load_cause("RW110").finding(
                f"rank {self._card.rank} on {self._card.host} left during start-up: {how}",
                certain=True,
                culprits=(self._card.place,),
                stage=self._stage.name,
            )
            try:
                if base or self._name == self._card.id:
                    self._num_present -= 1
                    self._publish(self._stopped(problem), base)
                    self._num_present += 1
                else:
                    self._write_event({"gone": self._card.id, "problem": problem.to_dict()})
                self.leave()
            except StartError:
                pass
            raise

    # -- the store ------------------------------------------------------------------------------------------------------------

    def _write_event(self, event: dict[str, Any]) -> None:
        number = self._call(lambda: self._board.add("rankwise/events", 1))
        self._call(lambda: self._board.put(f"rankwise/event/{number}", json.dumps(event)))

    def _write_letter(self, card: Card, letter: dict[str, Any]) -> None:
        """The first letter counts: two ranks that run out of time together must not contradict each other."""
        self._call(lambda: self._board.put_first(f"rankwise/letter/{card.id}", json.dumps(letter)))

    def _publish(self, outcome: dict[str, Any], base: str = "") -> dict[str, Any]:
        """The first outcome counts, for everybody; returns it."""
        key = base or f"rankwise/{self._name}/registration"
        return dict(json.loads(self._call(lambda: self._board.put_first(key, json.dumps(outcome)))))

    def _ask(self, key: str, deadline: float, tell: Callable[[float], None] | None = None) -> str | None:
        """The key's value as soon as it is there; None when the time is over."""
        began = time.monotonic()
        told_at, pauses = began - _TELL_EVERY_S + _TELL_AFTER_S, _pauses()
        while (value := self._now(key)) is None:
            now = time.monotonic()
            if now >= deadline:
                return None
            if tell and now - told_at > _TELL_EVERY_S:
                told_at = now
                tell(now - began)
            time.sleep(min(next(pauses), deadline - now))
        return value

    def _now(self, key: str) -> str | None:
        return self._call(lambda: self._board.look(key))

    def _call(self, question: Callable[[], Answer]) -> Answer:
        """Ask the store; a store that has gone away, or fallen silent, is a finding."""
        try:
            return question()
        except BoardLost as error:
            raise StartError(self._store_gone(str(error))) from None

    def _store_gone(self, said: str) -> Finding:
        keeper = "the launcher" if self._place.kept_by_launcher else "rank 0"
        return load_cause("RW111").finding(
            f"rank {self._card.rank} on {self._card.host} lost the store at {self._place}, which {keeper} keeps",
            certain=True,
            culprits=() if self._place.kept_by_launcher else tuple(card.place for card in self.cards if card.rank == 0) or (Place(rank=0),),
            why=f"{said}: {keeper} has ended, and its output says why, or the network between them was lost",
            stage=self._stage.name,
        )


def waiting_text(cards: list[Card], world_size: int, waited_s: float) -> str:
    """`3 of 4 ranks registered, waiting for rank 2 on node-b, 14 s`."""
    present = {card.rank for card in cards}
    missing = [rank for rank in range(world_size) if rank not in present]
    hosts = {likely_host(rank, cards) for rank in missing}
    on = f" on {hosts.pop()}" if len(hosts) == 1 and None not in hosts else ""
    return f"{len(present)} of {world_size} ranks registered, waiting for {ranks_text(missing)}{on}, {waited_s:.0f} s"


def _pauses() -> Iterator[float]:
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(1.4 * pause_s, _LONGEST_PAUSE_S)
