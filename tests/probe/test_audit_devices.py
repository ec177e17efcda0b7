"""What the audit may read: a tensor of a GPU only where all is asked for, because reading it waits for the GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rankwise

PROBE = Path(rankwise.__file__).parent
ASK = """
import sys
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
from probe.audit import record
print([record.may_read(SimpleNamespace(device=SimpleNamespace(type=kind))) for kind in ("cpu", "cuda")])
"""


@pytest.mark.parametrize(("level", "answer"), [("light", "[True, False]"), ("full", "[True, True]")])
def test_a_tensor_of_a_gpu_is_read_only_where_all_is_asked_for(level: str, answer: str) -> None:
    ran = subprocess.run([sys.executable, "-c", ASK, str(PROBE)], env={"RANKWISE_AUDIT": level}, capture_output=True, text=True, timeout=60)

    assert ran.stdout.strip() == answer, ran.stderr


WAIT = """
import sys
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
import torch
from probe.audit import prints
asked, told = prints.Asked([torch.ones(2)]), []
asked._events.append(SimpleNamespace(query=lambda: False, synchronize=lambda: told.append("waited")))
print(asked.are_there(), asked.numbers(), told)
"""


def test_numbers_of_a_gpu_are_never_read_before_they_have_arrived() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WAIT, str(PROBE)], env={"RANKWISE_AUDIT": "full"}, capture_output=True, text=True, timeout=120
    )

    assert ran.stdout.strip() == "False [[1.0, 1.0]] ['waited']", ran.stderr
