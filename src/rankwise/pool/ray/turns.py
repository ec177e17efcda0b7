"""Which actor gets which task next: each worker something to do first, then enough that none waits for the driver."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from rankwise.pool.ray.actors import ActorHandle, ActorSet
from rankwise.pool.ray.cluster import Share, spread_replicas
from rankwise.pool.schedule.state import ModelState

AHEAD_S = 0.05  # work that an actor has been given: enough that it need not wait for us, little enough to be done again elsewhere
MOST_AHEAD = 4000  # tasks
QUANTUM = 64  # tasks of one model before the others get their turn


class Turns:
    """The engine's lock is held in all of this. `begins` says whether a task may start: one whose deadline has passed never does."""

    def __init__(self, states: list[ModelState], needs: dict[str, Share], actors: ActorSet, begins: Callable[[Any, float], bool]) -> None:
        self._states, self._needs, self._actors, self._begins = states, needs, actors, begins
        self._serial = 0
        self._held: dict[int, dict[int, int]] = {state.number: {} for state in states if state.replicas is not None}

    def give_out(self) -> None:
        """What waits, to actors that have room for it. It goes on its way with their next `flush`."""
        ready = [actor for actor in self._actors.ready if actor.may_be_sent]
        if ready and any(state.queue.waiting for state in self._states):
            for is_ahead in (False, True):
                for actor in sorted(ready, key=lambda actor: len(actor.inflight) / actor.placement.workers):
                    self._fill(actor, is_ahead)

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def _fill(self, actor: ActorHandle, is_ahead: bool) -> None:
        now, progress = time.monotonic(), True
        while progress and not actor.is_exclusive:
            progress = False
            for model in self._by_turn():
                if self.can_run(actor, model):
                    progress |= self._give(actor, model, _most(actor, model, is_ahead), now)

    def _give(self, actor: ActorHandle, model: ModelState, most: int, now: float) -> bool:
        """Some tasks of this model; one that was with an actor that died gets an actor to itself."""
        given = 0
        while given < QUANTUM and len(actor.inflight) < most and not actor.is_exclusive:
            task = model.queue.peek()
            if task is None or (task.alone and actor.inflight) or not actor.has_room_for(task):
                break
            model.queue.pop()
            if not self._begins(task, now):
                continue
            actor.add(self.next_serial(), task)  # type: ignore[arg-type]
            model.virtual_s += model.order_s or 0.001
            given += 1
        return bool(given)

    def _by_turn(self) -> list[ModelState]:
        def turn(model: ModelState) -> tuple[int, float]:
            head = model.queue.peek()
            return (-(head.priority if head else 0), model.virtual_s)

        return sorted([model for model in self._states if model.queue.waiting], key=turn)

    def can_run(self, actor: ActorHandle, model: ModelState) -> bool:
        if model.number in actor.cannot or not actor.placement.can_hold(self._needs[model.name]):
            return False
        return model.number not in self._held or actor.number in self._held[model.number]

    def spread_replicas(self) -> None:
        for model in self._states:
            if model.replicas is None:
                continue
            able = {actor.number: actor for actor in self._actors.ready if actor.placement.can_hold(self._needs[model.name])}
            before = self._held[model.number]
            held = spread_replicas(model.replicas, before, {number: actor.placement.workers for number, actor in able.items()})
            for number, count in held.items():
                if before.get(number) != count:
                    able[number].hold(model.number, count)
            self._held[model.number] = held


def _most(actor: ActorHandle, model: ModelState, is_ahead: bool) -> int:
    """Tasks that may be with this actor, so that the next one of the model is sent as well."""
    least = actor.placement.workers * model.max_batch
    if not is_ahead:
        return least
    known = math.ceil(AHEAD_S / model.order_s) if model.order_s else 0
    return min(MOST_AHEAD, max(2 * least, actor.placement.workers * known))
