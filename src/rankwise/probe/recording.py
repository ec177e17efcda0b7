"""Begins to record a process that is a rank, or may become one. Only such processes import the modules this needs."""

from __future__ import annotations

import os

from . import hooks, process


def start() -> None:
    """Write who this process is and note how it ends. Does so once per process: a forked child calls it again."""
    if process.is_recording():
        return
    process.recording_pid = os.getpid()
    from . import exits, journal

    hooks.guarded(journal.write_process_info)()
    hooks.guarded(exits.install)()


def separate_output() -> None:
    """Give this process its own pipe to the launcher. Only for what is or may become a rank: ranks inherit their launcher's pipe."""
    from . import output_pipe

    hooks.guarded(output_pipe.separate)()
