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
