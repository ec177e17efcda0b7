"""Models for the tests on Ray."""

from __future__ import annotations

import os
import signal
from typing import Any

import psutil


class ActorKiller:
    """Gives its input back; one below zero ends the actor above its worker."""

    def __call__(self, x: float) -> float:
        if x < 0:
            above = psutil.Process().parents()
            os.kill(above[1].pid, signal.SIGKILL)  # the worker was forked from a process that the actor has started
        return x


class OnlyOnce:
    """Can be built by one process only, as if a file were missing on all nodes but one."""

    def __init__(self, path: str) -> None:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))

    def __call__(self, x: Any) -> Any:
        return x
