"""`rankwise check` on a host with a real GPU: counts, memory, health, and the batch size that fits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GIB = 1 << 30


def has_gpu() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidia0").exists()


pytestmark = [pytest.mark.skipif(not has_gpu(), reason="no NVIDIA GPU here"), pytest.mark.timeout(300)]

HOLDER = """
import sys, torch
x = torch.zeros(3 << 30, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("holding", flush=True)
sys.stdin.read()
"""
STEP = """
import torch

def step(batch_size):
    x = torch.zeros(batch_size, 1 << 30, dtype=torch.uint8, device="cuda")  # a GiB per sample
    x.add_(1)

def small(batch_size):
    torch.zeros(batch_size, 8, device="cuda")
    if batch_size > 1000:
        raise torch.OutOfMemoryError("CUDA out of memory (said by the test)")
"""


def check(*args: str, cwd: Path, env: dict[str, str] | None = None, timeout_s: float = 250) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "rankwise", "check", "--json", *args]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, **(env or {})}, timeout=timeout_s)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def result(report: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in report["results"] if each["check"] == name)


def value(report: dict[str, Any], name: str) -> str:
    return next(iter(result(report, name)["values"].values()), "")


def gpu_count() -> int:
    done = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"], capture_output=True, text=True, timeout=120
    )
    return int(done.stdout)


def test_the_gpus_of_this_host_are_seen(tmp_path: Path) -> None:
    code, report = check("--only", "gpus,parity", cwd=tmp_path)

    assert code == 0, report["findings"]
    assert result(report, "gpu-count")["status"] in ("pass", "warn")
    assert value(report, "gpu-count").startswith(f"{gpu_count()} × NVIDIA")
    assert result(report, "gpu-memory")["status"] in ("pass", "warn") and "taken of" in value(report, "gpu-memory")
    assert result(report, "gpu-health")["status"] in ("pass", "warn")
    assert "CUDA" in value(report, "versions") and "NCCL" in value(report, "versions")


def test_more_ranks_than_gpus_is_a_finding(tmp_path: Path) -> None:
    code, report = check("--only", "gpus", "--nproc-per-node", str(gpu_count() + 1), cwd=tmp_path)

    assert code == 1
    assert report["findings"][0]["code"] == "RW122"
    assert f"{gpu_count()} usable GPU" in report["findings"][0]["summary"]


def test_hidden_gpus_are_told_with_the_variable(tmp_path: Path) -> None:
    code, report = check("--only", "gpus", cwd=tmp_path, env={"CUDA_VISIBLE_DEVICES": ""})

    assert code == 1
    assert "CUDA_VISIBLE_DEVICES=" in next(f for f in report["findings"] if f["code"] == "RW122")["why"]


def test_nproc_gpu_counts_them(tmp_path: Path) -> None:
    _, report = check("--only", "gpus", "--nproc-per-node", "gpu", cwd=tmp_path)

    assert f"for {gpu_count()} rank" in value(report, "gpu-count")


def test_memory_that_is_taken_is_named(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "holding\n"
        _, report = check("--only", "gpus", cwd=tmp_path)
    finally:
        holder.communicate("")
    found = [finding for finding in report["findings"] if finding["code"] == "RW631"]

    assert found and "on GPU 0" in found[0]["summary"]
    # In a container the driver does not tell who holds it, or tells pids of another namespace.
    assert str(holder.pid) in found[0]["why"] or "pid" in found[0]["why"] or "cannot be seen from here" in found[0]["why"]


def test_without_nvml_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "pynvml.py").write_text("raise ImportError('not here')\n")
    path = os.pathsep.join([str(tmp_path / "shadow"), os.environ.get("PYTHONPATH", "")])
    _, report = check("--only", "gpus", cwd=tmp_path, env={"PYTHONPATH": path})

    assert result(report, "gpu-memory")["why"] == "nvidia-ml-py is not installed"


def test_the_largest_batch_that_fits_is_found_by_trying(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text(STEP)
    code, report = check("--only", "fit", "--fit", "steps:step", "--time-limit", "200", cwd=tmp_path)
    text = value(report, "fit")

    assert code == 0, report["findings"]
    size = int(text.split()[0])
    assert f"first failing {size + 1}" in text and "on cuda" in text
    total = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.cuda.get_device_properties(0).total_memory)"], capture_output=True, text=True
    )
    assert 0.8 * int(total.stdout) / GIB <= size + 1 <= int(total.stdout) / GIB + 1


def test_the_first_failing_size_is_exact(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text(STEP)
    code, report = check("--only", "fit", "--fit", "steps:small", cwd=tmp_path)

    assert code == 0
    assert value(report, "fit").startswith("1000 on cuda, first failing 1001")


def test_two_ranks_reduce_right(tmp_path: Path) -> None:
    code, report = check("--only", "collectives", "--nproc-per-node", "2", cwd=tmp_path)

    assert code == 0, report["findings"]
    assert "2 ranks right" in result(report, "collective")["values"]["gloo"]
    if gpu_count() > 1:
        assert "2 ranks right" in result(report, "collective")["values"]["nccl"]
