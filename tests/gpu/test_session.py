"""session() with NCCL, two ranks on a real GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CASE = Path(__file__).parent / "cases" / "session.py"


def has_gpu() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidia0").exists()


def num_gpus() -> int:
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*"))) if has_gpu() else 0


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_gpu(), reason="no NVIDIA GPU here"), pytest.mark.timeout(240)]


def run(how: str, folder: Path) -> list[dict[str, Any]]:
    env = {**os.environ, "NCCL_SOCKET_IFNAME": "lo", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(CASE), how, str(folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


def test_the_nccl_stages_are_passed_up_to_the_first_gradient(tmp_path: Path) -> None:
    told = run("healthy", tmp_path)

    assert [facts.get("backend") for facts in told] == ["nccl", "nccl"], told
    assert [facts["device"] for facts in told] == ["cuda:0", "cuda:0"]
    assert [facts["sum"] for facts in told] == [3.0, 3.0]
    assert all(facts["left"] for facts in told)


def test_a_gpu_that_two_ranks_claim_is_named_by_both(tmp_path: Path) -> None:
    told = run("claimed_twice", tmp_path)

    assert told[0]["finding"] == told[1]["finding"]
    finding = told[0]["finding"]
    assert (finding["code"], finding["stage"]) == ("RW121", "devices")
    assert [place["rank"] for place in finding["culprits"]] == [0, 1]


@pytest.mark.skipif(num_gpus() > 1, reason="for hosts with one GPU")
def test_a_gpu_that_is_not_there_is_named_by_both(tmp_path: Path) -> None:
    told = run("not_there", tmp_path)

    assert told[0]["finding"] == told[1]["finding"]
    assert (told[0]["finding"]["code"], told[0]["finding"]["culprits"][0]["rank"]) == ("RW122", 1)
