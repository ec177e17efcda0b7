"""A signal that the model's code sends to its own process looks like one from outside; so a note is left first."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from rankwise.pool.status import StatusPage


def note_own_doing(page: StatusPage) -> None:
    """In the ways Python has; what C code sends cannot be told from others'."""
    me, group = os.getpid(), os.getpgrp()

    def noting(act: Callable[..., Any], is_me: Callable[..., bool]) -> Callable[..., Any]:
        def act_noting(*args: Any) -> Any:
            if is_me(*args):
                page.note_own_doing()
            return act(*args)

        return act_noting

    os.kill = noting(os.kill, lambda pid, number: pid in (me, 0, -1, -group) and number)
    os.killpg = noting(os.killpg, lambda pgid, number: pgid in (0, group) and number)
    os.abort = noting(os.abort, lambda: True)
    signal.raise_signal = noting(signal.raise_signal, lambda number: True)
    signal.pthread_kill = noting(signal.pthread_kill, lambda thread, number: bool(number))
