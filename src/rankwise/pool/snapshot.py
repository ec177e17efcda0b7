"""The pool at one moment, as plain data: what `stats()`, the metrics and `rankwise top` show."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from rankwise.pool.schedule import ModelState, Order, WorkerState

if TYPE_CHECKING:
    from rankwise.pool.dispatch import Dispatcher


def snapshot(dispatcher: Dispatcher) -> dict[str, Any]:
    scheduler = dispatcher.scheduler
    with dispatcher.lock:
        models = {
            model.name: {
                "queued": model.queue.requests,
                "running": sum(
                    _requests(order) for w in scheduler.workers.values() for order in w.inflight.values() if order.model is model
                ),
                "replicas": sum(model.number in worker.holds for worker in scheduler.workers.values()),
                "memory_bytes": model.nbytes if model.is_measured else None,
                "max_batch": model.max_batch,
                "batch_cost_s": model.cost.fit(),
                "state": "failed" if model.broken is not None else "ok",
                "finding": _told(model),
                **dispatcher.counters.of(model.name).to_dict(),
            }
            for model in scheduler.models.values()
        }
        workers = [_worker(worker) for worker in scheduler.workers.values()]
        restarts = dispatcher.counters.restarts
    return {
        "pid": os.getpid(),
        "plan": dispatcher.settings.plan,
        "models": models,
        "workers": workers,
        "restarts": restarts,
        "lanes": {"inputs_used_bytes": dispatcher.arena.used_bytes(), "inputs_bytes": dispatcher.arena.total_bytes},
    }


def _requests(order: Order) -> int:
    return sum(task.count for task in order.tasks)


def _told(model: ModelState) -> str | None:
    """What there is to know about it: why it cannot be had, or is not batched."""
    finding = model.broken.finding if model.broken is not None else model.unbatched
    return f"{finding.code} {finding.summary}" if finding is not None else None


def _worker(worker: WorkerState) -> dict[str, Any]:
    serial, since_ns = worker.edge.page.running
    order = worker.inflight.get(serial)
    return {
        "number": worker.number,
        "pid": worker.edge.pid,
        "device": worker.device,
        "ready": worker.is_ready,
        "holds": [holding.model.name for holding in worker.holds.values()],
        "memory_bytes": worker.held_bytes,
        "inflight": sum(map(_requests, worker.inflight.values())),
        "running": order.model.name if order is not None else None,
        "running_s": (time.monotonic_ns() - since_ns) / 1e9 if order is not None else None,
    }
