"""Waits for the end of a job, while another thread watches it. That thread may fail or block for ever without any effect on the job."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rankwise.launch.job import TICK_S, RunningJob

if TYPE_CHECKING:  # loaded while the job starts
    from rankwise.launch.watch import Watch

_STUCK_S = 30.0  # a single step of the watcher that takes longer is taken for one that never ends


def follow(job: RunningJob, make_watcher: Callable[[], Watch]) -> int:
    """The exit code of `rankwise run`: the command's own, or the one for a hung job that was stopped."""
    hook = threading.excepthook
    threading.excepthook = lambda failed: _note_thread(job, failed)
    try:
        watcher, thread = _start(job, make_watcher)
        while job.code is None and (watcher is None or watcher.exit_code is None):
            with job.faults.guard("follow the job") as following:
                job.follow(TICK_S)
                _note_if_stuck(job, watcher, thread)
            if following.has_failed:
                time.sleep(TICK_S)
        if watcher is not None:
            watcher.is_over.set()
            while thread.is_alive() and time.monotonic() - watcher.step_s < _STUCK_S and len(job.asked) < 3:
                thread.join(TICK_S)
            job.is_abandoned = thread.is_alive()
    finally:
        threading.excepthook = hook
    with job.faults.guard("clean up"):
        job.end()
    code = watcher.exit_code if watcher is not None else None
    return (job.code or 0) if code is None else code


def _start(job: RunningJob, make_watcher: Callable[[], Watch]) -> tuple[Watch | None, threading.Thread]:
    """The watcher in its thread; None where it could not be started."""
    watcher, thread = None, threading.Thread(target=lambda: None)
    with job.faults.guard("watch the job"):
        made = make_watcher()
        thread = threading.Thread(target=_run, args=(job, made), name="watch", daemon=True)
        thread.start()
        watcher = made
    return watcher, thread


def _run(job: RunningJob, watcher: Watch) -> None:
    with contextlib.suppress(AttributeError, OSError):  # take only idle processors: a rank that loses its own keeps all ranks waiting
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with job.faults.guard("watch the job"):
        watcher.run()


def _note_if_stuck(job: RunningJob, watcher: Watch | None, thread: threading.Thread) -> None:
    if watcher is not None and thread.is_alive() and time.monotonic() - watcher.step_s > _STUCK_S:
        job.faults.note(watcher.step, TimeoutError(f"it has taken {_STUCK_S:.0f} s, and goes on"))


def _note_thread(job: RunningJob, failed: threading.ExceptHookArgs) -> None:
    """Write the exception that ended a thread of ours to the log, not to the user's terminal."""
    name = failed.thread.name if failed.thread is not None else "a thread"
    if isinstance(failed.exc_value, Exception):
        job.faults.note(f"go on with {name!r}", failed.exc_value)
