"""The pool on a cluster at one moment, in the shape that the pool of one machine has, with the node of each worker."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rankwise.pool.schedule.state import ModelState
from rankwise.pool.stats import Counters

if TYPE_CHECKING:
    from rankwise.pool.ray.handles import ActorSet

_SUMMED = ("replicas", "loads", "evictions")  # that only the actors know


def cluster_stats(states: list[ModelState], actors: ActorSet, counters: Counters, plan: str) -> dict[str, Any]:
    """What actors know is as they told it last, a second ago at the most."""
    told = [actor.numbers["models"] for actor in actors.ready if actor.numbers]
    running = [task.model for actor in actors.all for task in actor.inflight.values() if not task.is_over]
    workers: list[dict[str, Any]] = []
    for actor in actors.all:
        for worker in actor.numbers.get("workers", ()):
            workers.append({**worker, "number": len(workers) + 1, "node": actor.host, "actor": actor.number})
    lanes = [actor.numbers["lanes"] for actor in actors.ready if actor.numbers]
    return {
        "pid": os.getpid(),
        "plan": plan,
        "models": {state.name: _model(state, [each[state.name] for each in told], running.count(state), counters) for state in states},
        "workers": workers,
        "restarts": counters.restarts + sum(actor.numbers.get("restarts", 0) for actor in actors.all),
        "lanes": {name: sum(each[name] for each in lanes) for name in ("inputs_used_bytes", "inputs_bytes")},
        "actors": [
            {"number": actor.number, "node": actor.host, "ready": actor.is_ready, "inflight": len(actor.inflight)} for actor in actors.all
        ],
    }


def _model(state: ModelState, told: list[dict[str, Any]], running: int, counters: Counters) -> dict[str, Any]:
    broken = state.broken.finding if state.broken is not None else None
    findings = [each["finding"] for each in told if each["finding"]]
    return {
        "queued": state.queue.requests,
        "running": running,
        "memory_bytes": max([each["memory_bytes"] or 0 for each in told], default=0) or None,
        "max_batch": min([each["max_batch"] for each in told], default=state.max_batch),
        "batch_cost_s": next((each["batch_cost_s"] for each in told if each["batch_cost_s"]), None),
        "state": "failed" if broken is not None else "ok",
        "finding": f"{broken.code} {broken.summary}" if broken is not None else next(iter(findings), None),
        **counters.of(state.name).to_dict(),
        **{name: sum(each[name] for each in told) for name in _SUMMED},
    }
