"""The roll-call: every rank puts its card on the table, rank 0 answers, compares, and publishes one outcome for all.

Every process has a name of its own (its card's id), because a launcher's store outlives the ranks: what a rank of an earlier attempt has
written there must not be taken for one of this attempt. So rank 0 answers each card with a letter to that very process, and only who
confirms the letter is present. From then on all keys are below rank 0's id: that is the gathering's name.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, replace
from typing import Any

from rankwise.causes import load_cause
from rankwise.findings import Finding, Place
from rankwise.ranks import MeetingPlace
from rankwise.stages import REGISTRATION
from rankwise.train.cards import Card
from rankwise.train.rollcall import (
    find_contradiction,
    find_device_problem,
    find_differences,
    find_missing,
    find_unreachable_address,
    registered_text,
)
from rankwise.train.store_client import StoreClient

logger = logging.getLogger("rankwise.session")

_TELL_AFTER_S = 3.0
_TELL_EVERY_S = 10.0
_QUIET_S = 0.1  # after so long without news the cards are compared, not at every single one
_SETTLE_S = 2.0  # how long ranks that are just arriving are waited for when it is already known that the job cannot start
_SKIP_S = 5.0  # between taking a number and writing under it, a rank needs a fraction of this
_GRACE_S = 5.0  # how much longer than its own deadline a rank waits for rank 0's word


class Registration:
    """One rank's part in the roll-call."""

    def __init__(self, client: StoreClient, place: MeetingPlace, card: Card) -> None:
        self._store, self._place, self._card = client, place, card
        self._waiting: dict[str, Card] = {}  # answered, not confirmed yet
        self._present = {card.id: card}
        self.name = card.id if card.rank == 0 else ""
        self.num_present = 1  # ranks that can be reached, this one included

    def run(self, timeout_s: float) -> dict[str, Any]:
        """The outcome: the cards of all ranks and what differs, or the finding that all shall raise and how many can."""
        deadline = time.monotonic() + timeout_s
        self._write_event({"card": asdict(self._card)})
        return self._lead(deadline, timeout_s) if self._card.rank == 0 else self._follow(deadline, timeout_s)

    def leave_word(self, problem: Finding) -> None:
        """This rank leaves before the roll-call is over."""
        if self._card.rank == 0:
            self._publish({"finding": problem.to_dict(), "present": self.num_present - 1})
        else:
            self._write_event({"gone": self._card.id, "problem": problem.to_dict()})

    # -- rank 0 ---------------------------------------------------------------------------------------------------------------

    def _lead(self, deadline: float, timeout_s: float) -> dict[str, Any]:
        number, began, is_wrong, has_news = 0, time.monotonic(), False, True
        tell_at, heard_at = began + _TELL_AFTER_S, began
        while len(self._present) < max(card.world_size for card in self._present.values()):
            event = self._store.wait(
                f"rankwise/event/{number + 1}", min(deadline, tell_at, time.monotonic() + (_QUIET_S if has_news else 1.0))
            )
            now, cards = time.monotonic(), list(self._present.values())
            if event is not None or (now - heard_at > _SKIP_S and self._is_skipped(number + 1)):
                number, heard_at = number + 1, now
                self._take(json.loads(event or "{}"))
                has_news = True
            elif has_news:
                has_news = False
                if not is_wrong and find_contradiction(cards):
                    is_wrong, deadline = True, min(deadline, now + _SETTLE_S)
            elif now >= deadline:
                break
            elif now >= tell_at:
                tell_at = now + _TELL_EVERY_S
                logger.warning(registered_text(cards, self._card.world_size, now - began))
        return self._publish(self._judged(timeout_s))

    def _is_skipped(self, number: int) -> bool:
        """Its writer took the number and was killed before it wrote; a later one did write."""
        return self._store.look(f"rankwise/event/{number + 1}") is not None

    def _take(self, event: dict[str, Any]) -> None:
        """A card is answered with a letter; a confirmed letter makes its writer present; who leaves before is told to all."""
        if "card" in event:
            card = Card.from_dict(event["card"])
            if card.id != self._card.id and card.job == self._card.job:
                self._waiting[card.id] = card
                self._write_letter(card, {"gathering": self.name})
        elif event.get("gathering") == self.name and event.get("here") in self._waiting:
            self._present[event["here"]] = self._waiting.pop(event["here"])
        elif (gone := self._present.get(event.get("gone", "")) or self._waiting.get(event.get("gone", ""))) is not None:
            self._present[gone.id] = replace(gone, problem=event["problem"], is_gone=True)
        self.num_present = sum(not card.is_gone for card in self._present.values())

    def _judged(self, timeout_s: float) -> dict[str, Any]:
        cards = sorted(self._present.values(), key=lambda card: card.rank)
        finding = find_contradiction(cards)
        if finding is None and len(cards) < self._card.world_size:
            finding = find_missing(cards, self._card.world_size, timeout_s, str(self._place))
        notes = find_differences(cards)
        finding = finding or find_device_problem(cards) or find_unreachable_address(cards)
        finding = finding or next((note for note in notes if note.severity == "error"), None)
        if finding:
            return {"finding": finding.to_dict(), "present": self.num_present}
        return {"cards": [card.shortened() for card in cards], "notes": [note.to_dict() for note in notes]}

    # -- the others -----------------------------------------------------------------------------------------------------------

    def _follow(self, deadline: float, timeout_s: float) -> dict[str, Any]:
        letter = self._store.wait(f"rankwise/letter/{self._card.id}", deadline, self._tell_leaderless)
        if letter is None:
            self._raise_alarm(timeout_s)
            letter = self._store.wait(f"rankwise/letter/{self._card.id}", deadline + _GRACE_S)
        answer = json.loads(letter or "{}")
        self.name = answer.get("gathering", self._card.id)
        if "finding" in answer:
            return dict(answer)
        self._write_event({"here": self._card.id, "gathering": self.name})
        if self._card.problem and self._card.problem["code"] == "RW608":  # the outcome, a large answer, would not arrive here
            return {"finding": self._card.problem, "present": self._card.world_size}
        outcome = self._store.wait(f"rankwise/{self.name}/registration", deadline + _GRACE_S)
        return dict(json.loads(outcome)) if outcome else self._publish(self._leader_silent())

    def _tell_leaderless(self, waited_s: float) -> None:
        logger.warning("rank %d on %s is registered and waits for rank 0, %.0f s", self._card.rank, self._card.host, waited_s)

    def _raise_alarm(self, timeout_s: float) -> None:
        """The launcher keeps the store and rank 0 never came: the first rank whose time is over tells all registered ranks."""
        cards = self._registered()
        finding = find_missing(cards, self._card.world_size, timeout_s, str(self._place))
        for card in cards:
            self._write_letter(card, {"finding": finding.to_dict(), "gathering": self._card.id, "present": len(cards)})

    def _registered(self) -> list[Card]:
        """The cards on the table; a rank that its launcher started again counts once."""
        latest: dict[tuple[str, int, int], Card] = {}
        for number in range(1, self._store.add("rankwise/events", 0) + 1):
            event = json.loads(self._store.look(f"rankwise/event/{number}") or "{}")
            if "card" in event:
                card = Card.from_dict(event["card"])
                latest[card.host, card.launcher, card.rank] = card
        return list(latest.values())

    def _leader_silent(self) -> dict[str, Any]:
        summary = "rank 0 registered and then stopped answering before every rank had"
        finding = load_cause("RW110").finding(summary, certain=False, culprits=(Place(rank=0),), stage=REGISTRATION.name)
        return {"finding": finding.to_dict(), "present": self._card.world_size}

    # -- writing --------------------------------------------------------------------------------------------------------------

    def _write_event(self, event: dict[str, Any]) -> None:
        number = self._store.add("rankwise/events", 1)
        self._store.put(f"rankwise/event/{number}", json.dumps(event))

    def _write_letter(self, card: Card, letter: dict[str, Any]) -> None:
        """The first letter counts: two ranks that run out of time together must not contradict each other."""
        self._store.put_first(f"rankwise/letter/{card.id}", json.dumps(letter))

    def _publish(self, outcome: dict[str, Any]) -> dict[str, Any]:
        """The first outcome counts, for everybody; returns it."""
        return dict(json.loads(self._store.put_first(f"rankwise/{self.name}/registration", json.dumps(outcome))))
