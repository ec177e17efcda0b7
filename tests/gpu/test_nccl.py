"""The verdicts on NCCL, with real ranks on a real GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

CASES = Path(__file__).parent / "cases"
# name: ranks started, acceptable codes, ranks that must be named (any of them), words that must be said
FAULTS: dict[str, tuple[int, set[str], set[int], str]] = {
    "rank0_barrier": (2, {"RW208"}, {0}, "barrier"),
    "skipped_backward": (3, {"RW201"}, {1}, "skip"),
    "different_ops": (2, {"RW202", "RW203"}, {0, 1}, "broadcast"),
    "shape_mismatch": (2, {"RW204"}, {0, 1}, "shape"),
    "busy_loop": (3, {"RW301"}, {1}, "draw"),
    "sleeping": (2, {"RW302"}, {0}, "sleep"),
    "exception": (3, {"RW401"}, {1}, "ValueError"),
    "os_exit": (2, {"RW402"}, {1}, "exit"),
    "killed": (3, {"RW403"}, {1}, "SIGKILL"),
    "eval_through_ddp": (2, {"RW209"}, {0}, "forward"),
    "out_of_memory": (2, {"RW408"}, {1}, "memory"),
    "uneven_batches": (2, {"RW213"}, {1}, "fewer"),
    "send_without_recv": (2, {"RW212"}, {0, 1}, "send"),
}


def has_gpu() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidia0").exists()


pytestmark = [pytest.mark.skipif(not has_gpu(), reason="no NVIDIA GPU here"), pytest.mark.timeout(240)]


@pytest.mark.parametrize("name", FAULTS)
def test_the_culprit_is_named_on_nccl(name: str, tmp_path: Path) -> None:
    num_ranks, codes, ranks, word = FAULTS[name]
    _, verdict = run(name, num_ranks, tmp_path)
    top = verdict["findings"][0]
    named = {culprit["rank"] for culprit in top["culprits"]}
    said = f"{top['name']} {top['summary']} {top['why']} {top['culprits']}"
    assert top["code"] in codes, top["summary"]
    assert named and named <= ranks, top["summary"]
    assert word in said


def test_a_healthy_job_is_left_alone_on_nccl(tmp_path: Path) -> None:
    code, verdict = run("healthy", 2, tmp_path)
    assert code == 0
    assert not [finding for finding in verdict["findings"] if finding["severity"] == "error"]


def run(name: str, num_ranks: int, tmp_path: Path) -> tuple[int, dict[str, Any]]:
    """Run a case; a hang that is only reported is ended as soon as the right one is: on a machine that is busy, a slow start may be
    taken for one before."""
    env = dict(os.environ, NCCL_SOCKET_IFNAME="lo", NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1", OMP_NUM_THREADS="1")
    out = tmp_path / "out"
    job = ["--standalone", "--nproc-per-node", str(num_ranks), str(CASES / f"{name}.py")]
    command = [sys.executable, "-m", "rankwise", "run", "--out", str(out), "--stall-after", "6", *job]
    process = subprocess.Popen(command, env=env, cwd=tmp_path)
    deadline = time.monotonic() + 200
    verdict: dict[str, Any] = {}
    while process.poll() is None and time.monotonic() < deadline:
        verdict = read(out)
        suspected = [finding["code"] for finding in verdict.get("findings", [])[:1]]
        if verdict.get("outcome") == "stalled" and name != "healthy" and set(suspected) <= FAULTS[name][1]:
            process.send_signal(signal.SIGTERM)
            break
        time.sleep(0.2)
    code = process.wait(timeout=60)
    return code, read(out)


def read(out: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((out / "verdict.json").read_text()))
    except (OSError, ValueError):
        return {}
