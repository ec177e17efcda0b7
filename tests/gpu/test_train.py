"""Training on a real GPU: mixed precision, and NCCL with two ranks on one GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

JOB = Path(__file__).parent / "cases" / "training.py"


def has_gpu() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidia0").exists()


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_gpu(), reason="no NVIDIA GPU here"), pytest.mark.timeout(300)]


def ranks(world_size: int, folder: Path, **options: Any) -> list[dict[str, Any]]:
    """What each rank came to; each has a host of its own as far as NCCL can see, so that they may share the GPU."""
    folder.mkdir(exist_ok=True)
    common = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    port = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29500 + os.getpid() % 1000), "WORLD_SIZE": str(world_size), "LOCAL_RANK": "0"}
    processes = []
    for rank in range(world_size):
        env = {**os.environ, **common, **port, "RANK": str(rank), "NCCL_HOSTID": f"host-{rank}"}
        processes.append(subprocess.Popen([sys.executable, str(JOB), str(folder), json.dumps(options)], env=env))
    codes = [process.wait(timeout=240) for process in processes]
    assert codes == [0] * world_size
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world_size)]


def distance(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


# A reduction on the GPU adds up in another order for another batch shape; bf16 and fp16 round to 8 and 11 bits.
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 2**-7), ("fp16", 2**-9)])
def test_two_ranks_on_nccl_end_where_one_process_ends(tmp_path: Path, precision: str, tolerance: float) -> None:
    alone = ranks(1, tmp_path / "alone", precision=precision)[0]
    first, second = ranks(2, tmp_path / "two", precision=precision)

    assert first["device"] == "cuda" and first["backend"] == "nccl"
    assert first["weights"] == second["weights"]
    assert distance(first["weights"], alone["weights"]) <= tolerance * max(map(abs, alone["weights"]))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_infinite_gradients_on_one_rank_are_skipped_by_both(tmp_path: Path, precision: str) -> None:
    first, second = ranks(2, tmp_path, precision=precision, poison=5)

    assert first["skipped"] == second["skipped"] >= 1
    assert first["weights"] == second["weights"] and all(weight == weight for weight in first["weights"])


@pytest.mark.parametrize("options", [{"asynchronous": True}, {"sharded": True}, {"zero": True}], ids=str)
def test_a_training_on_nccl_resumes_exactly(tmp_path: Path, options: dict[str, Any]) -> None:
    undisturbed = ranks(2, tmp_path / "undisturbed", zero=options.get("zero", False))
    ranks(2, tmp_path / "resumed", stop_at=7, **options)

    resumed = ranks(2, tmp_path / "resumed", **options)

    assert resumed[0]["resumed"] == 6
    assert distance(resumed[0]["weights"], undisturbed[0]["weights"]) <= 1e-6


@pytest.mark.skipif(shutil.which("gcc") is None, reason="torch.compile needs a C compiler, and there is none")
def test_a_compiled_model_ends_where_the_plain_one_ends(tmp_path: Path) -> None:
    plain = ranks(2, tmp_path / "plain")[0]
    first, second = ranks(2, tmp_path / "compiled", compiled=True)

    assert first["weights"] == second["weights"]
    assert distance(first["weights"], plain["weights"]) <= 1e-4 * max(map(abs, plain["weights"]))


def test_batchnorm_is_synchronised_on_request(tmp_path: Path) -> None:
    first, second = ranks(2, tmp_path, sync_batchnorm=True)

    assert "SyncBatchNorm" in first["modules"]
    assert first["buffers"] == second["buffers"]


def test_predictions_are_gathered_once_each_on_nccl(tmp_path: Path) -> None:
    for rank in ranks(2, tmp_path):
        assert rank["predictions"] == list(range(13))
        assert rank["mean"] == pytest.approx(6.0)
