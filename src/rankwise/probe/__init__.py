"""The probe runs inside every Python process of a watched job, with the standard library and torch only.

Nothing here imports rankwise by name, because the job may run in another environment; modules import each other relatively for that reason.
A failure in here is written to the journal, and the script goes on. Begin with `hooks`, then `collectives`, `calls` and `ring`.
"""

import os
import sys


def start(live: str) -> None:
    """Start the probe: cheap hooks in every process, the rest only in processes that look like ranks or import torch.distributed."""
    from . import hooks, process, recording

    process.live = live
    hooks.install()
    is_rank = any(name in os.environ for name in process.RANK_VARIABLES)
    if is_rank or "--multiprocessing-fork" in sys.orig_argv:
        recording.start()
        recording.separate_output()
