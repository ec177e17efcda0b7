"""Health for probes: live while the pool can still run tasks, ready once the models that have to be loaded are."""

from __future__ import annotations

import time

from rankwise.serve.catalogue import Catalogue
from rankwise.serve.errors import RequestError

STUCK_S = 60.0  # the pool is stuck if tasks waited for so long and no worker ran or finished one


class Health:
    def __init__(self, catalogue: Catalogue, may_control: bool = True) -> None:
        self._catalogue, self._may_control = catalogue, may_control
        self.is_draining = False
        self._done, self._moved = -1, time.monotonic()

    def look(self, now: float) -> None:
        """Note whether the pool makes progress; called now and then."""
        stats = self._catalogue.pool.stats()
        models = stats["models"].values()
        done = sum(n["completed"] + n["failed"] + n["cancelled"] for n in models)
        waits = any(n["queued"] for n in models)
        runs = any(worker["running"] for worker in stats["workers"])
        if done != self._done or runs or not waits:
            self._done, self._moved = done, now

    def why_not_live(self) -> str:
        stuck_s = time.monotonic() - self._moved
        return f"tasks have waited for {stuck_s:.0f} s, and no worker does anything" if stuck_s > STUCK_S else ""

    def why_not_ready(self) -> str:
        if self.is_draining:
            return "the server is shutting down"
        if why := self.why_not_live():
            return why
        if self._catalogue.pool.is_closed:
            return "the pool is closed"
        waiting = self._catalogue.waiting
        return "; ".join(f"model {model.name!r} is {model.state}" + (f": {model.reason}" if model.reason else "") for model in waiting)

    def check_control(self) -> None:
        """Raise if models may not be loaded and unloaded here, because any client on the network could do so."""
        if not self._may_control:
            raise RequestError("models can be loaded and unloaded only over loopback, or with a token", 403)
