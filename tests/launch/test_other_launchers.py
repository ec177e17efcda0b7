"""Jobs that others start: `accelerate launch`, a Lightning Fabric script, `mpirun`. One hang each, and the rank to blame."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.launch.jobs import line_of, write_script

Run = Callable[..., Any]
# One thread per rank: these frameworks bring enough load of their own.
QUIET = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}


def check(ran: Any, script: Path, codes: set[str], rank: int, comments: set[str], waits: str) -> None:
    """The verdict blames this rank, at one of these lines, and says where the other one waits."""
    assert ran.verdict is not None, ran.text[-3000:]
    assert ran.code == 70, ran.text[-3000:]
    assert (ran.verdict["outcome"], ran.verdict["world_size"]) == ("hung", 2)
    finding = ran.verdict["findings"][0]
    assert finding["code"] in codes, finding
    assert finding["certain"]
    assert {culprit["rank"] for culprit in finding["culprits"]} == {rank}
    assert finding["culprits"][0]["file"].endswith(script.name)
    assert finding["culprits"][0]["line"] in {line_of(script, comment) for comment in comments}
    assert {wait["rank"] for wait in finding["waiting"]} == {1 - rank}
    assert finding["waiting"][0]["line"] == line_of(script, waits)


def check_output(ran: Any, script: Path) -> None:
    for rank in (0, 1):
        assert f"hello from rank {rank}" in (script.parent / "out" / "logs" / f"rank-{rank}.log").read_text()
        assert f"[rank {rank}] hello from rank {rank}" in ran.stdout


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
def test_accelerate_launch(tmp_path: Path, run_rankwise: Run, free_port: int) -> None:
    script = write_script(
        tmp_path,
        """
        import torch
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        print("hello from rank", accelerator.process_index, flush=True)
        loss = torch.ones(2)
        for step in range(3):
            if step == 2 and accelerator.process_index == 1:
                continue  # skips
            loss = accelerator.reduce(loss)  # reduces
        accelerator.wait_for_everyone()  # barrier
        """,
        "train.py",
    )
    # --multi_gpu is how accelerate starts several processes on one host; the script itself stays on the CPU.
    options = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    accelerate = [sys.executable, "-m", "accelerate.commands.launch", *options, "--main_process_port", str(free_port)]

    ran = run_rankwise("run", "--out", "out", "--", *accelerate, script, cwd=tmp_path, env=QUIET, timeout_s=170)

    check(ran, script, {"RW201"}, rank=1, comments={"skips", "barrier"}, waits="reduces")
    check_output(ran, script)


@pytest.mark.skipif(importlib.util.find_spec("lightning_fabric") is None, reason="lightning-fabric is not installed")
def test_lightning_fabric(tmp_path: Path, run_rankwise: Run, free_port: int) -> None:
    """Fabric starts rank 1 itself, as a subprocess of rank 0."""
    script = write_script(
        tmp_path,
        """
        import torch
        from lightning_fabric import Fabric

        fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
        fabric.launch()
        print("hello from rank", fabric.global_rank, flush=True)
        model = torch.nn.Linear(4, 2)
        model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(3):
            loss = model(torch.ones(2, 4)).sum()
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if step == 2 and fabric.global_rank == 1:
                continue  # skips
            fabric.all_reduce(torch.ones(64))  # reduces
        fabric.all_gather(torch.ones(64))  # gathers
        """,
        "train.py",
    )
    env = {**QUIET, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}

    ran = run_rankwise("run", "--out", "out", "--", sys.executable, script, cwd=tmp_path, env=env, timeout_s=170)

    check(ran, script, {"RW201"}, rank=1, comments={"skips", "gathers"}, waits="reduces")
    check_output(ran, script)


@pytest.mark.mpi
def test_mpirun(tmp_path: Path, run_rankwise: Run, free_port: int) -> None:
    mpirun = _mpirun()
    script = write_script(
        tmp_path,
        """
        import os
        import torch
        import torch.distributed as dist

        rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
        dist.init_process_group("gloo", rank=rank, world_size=size)
        print("hello from rank", rank, flush=True)

        for step in range(4):
            if step == 2 and rank == 1:
                continue  # skips
            dist.all_reduce(torch.ones(64))  # reduces
        dist.barrier()  # barrier
        dist.destroy_process_group()
        """,
        "train.py",
    )
    env = {**QUIET, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}

    ran = run_rankwise("run", "--out", "out", "--", *mpirun, "-n", "2", sys.executable, script, cwd=tmp_path, env=env, timeout_s=170)

    check(ran, script, {"RW201"}, rank=1, comments={"skips", "barrier"}, waits="reduces")
    for rank in (0, 1):
        assert (tmp_path / "out" / "logs" / f"rank-{rank}.log").read_text().splitlines()[0] == f"hello from rank {rank}"
        assert f"[rank {rank}] hello from rank {rank}" in ran.stdout.splitlines()


def _mpirun() -> list[str]:
    program = shutil.which("mpirun")
    if program is None:
        pytest.skip("needs mpirun (Debian: openmpi-bin)")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60).stdout
    if "Open MPI" not in version and "Open-MPI" not in version:
        pytest.skip(f"needs Open MPI, and this mpirun is {version.splitlines()[0] if version else 'another one'}")
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [program, *as_root, "--oversubscribe"]
