"""This process: where the probe writes what it finds, and whether the process is recorded."""

from __future__ import annotations

import os

RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")

live = ""  # the folder of the run
recording_pid = 0


def is_recording() -> bool:
    return recording_pid == os.getpid()


def is_recording_or_forked() -> bool:
    """True in a process that is recorded, and in one forked from it."""
    return recording_pid != 0
