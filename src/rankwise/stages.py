"""The stages a job passes before it trains: one description for `session`, `run` and `check`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One stage: its name in findings, what is true once it is done, and how long it may take.

    `limit_s` is None where only the user knows the limit: how long to wait for ranks that start late.
    """

    name: str
    done: str
    limit_s: float | None = None

    def __str__(self) -> str:
        return f"{self.done} (stage {STAGES.index(self) + 1} of {len(STAGES)})"


ENVIRONMENT = Stage("environment", "environment read", 5.0)
ADDRESS = Stage("address", "address resolved")
STORE = Stage("store", "store reached")
REGISTRATION = Stage("registration", "every rank registered")
DEVICES = Stage("devices", "devices claimed", 60.0)
BACKEND = Stage("backend", "backend connected", 60.0)
COLLECTIVE = Stage("collective", "first collective", 60.0)
PARAMETERS = Stage("parameters", "parameters agreed", 300.0)
GRADIENT = Stage("gradient", "first gradient synchronised", 300.0)

STAGES = (ENVIRONMENT, ADDRESS, STORE, REGISTRATION, DEVICES, BACKEND, COLLECTIVE, PARAMETERS, GRADIENT)
STAGE_NAMED = {stage.name: stage for stage in STAGES}
