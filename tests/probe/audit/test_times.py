"""The parts of a step as NVTX ranges, which Nsight Systems shows beside the kernels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import rankwise

PROBE = Path(rankwise.__file__).parent
PARTS = """
import sys
from types import SimpleNamespace
told = []
def start(name):
    told.append(f"{name} begins")
    return name
nvtx = SimpleNamespace(range_start=start, range_end=lambda name: told.append(f"{name} ends"))
sys.modules["torch"] = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: CUDA, nvtx=nvtx))
sys.path.insert(0, sys.argv[1])
import os
os.environ["RANKWISE_PROFILE"] = "1"
from probe.audit import times
times.begin("forward"); times.begin("collective"); times.add("collective", 1); times.add("forward", 1)
times.begin("data"); times.begin("data")
print(told)
"""


def told(cuda: str) -> str:
    ran = subprocess.run([sys.executable, "-c", PARTS.replace("CUDA,", f"{cuda},"), str(PROBE)], capture_output=True, text=True, timeout=60)
    return ran.stdout.strip() or ran.stderr


def test_each_part_is_a_range_and_one_that_an_exception_ended_is_closed_by_the_next() -> None:
    assert told("True") == str(
        ["forward begins", "collective begins", "collective ends", "forward ends", "data begins", "data ends", "data begins"]
    )


def test_without_cuda_there_are_none() -> None:
    assert told("False") == "[]"
