"""session() under the launchers people use: torchrun with restarts, Open MPI, Slurm's and Kubernetes' variables."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.train.stage import NOT_OURS, Stage, stage

ROOT = Path(__file__).parents[2]
SCRIPT = """\
import os
import sys
import torch
import torch.distributed as dist
import rankwise

with rankwise.session(timeout_s=60) as job:
    total = torch.tensor([job.rank + 1])
    dist.all_reduce(total)
    os.write(1, f"rank {job.rank} of {job.world_size} local {job.local_rank} sum {int(total)}\\n".encode())
    if os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0" and job.rank == 1 and "fail-once" in sys.argv:
        os._exit(7)
    dist.barrier()
"""


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("cast")) as it:
        yield it


def launch(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    (folder / "job.py").write_text(SCRIPT)
    env = {name: value for name, value in os.environ.items() if name not in NOT_OURS} | {
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=170)


@pytest.mark.live
def test_torchrun_starts_the_job_again_and_the_first_attempt_is_not_mistaken_for_it(tmp_path: Path) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    done = launch(tmp_path, *torchrun, "job.py", "fail-once")

    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank")) == sorted(
        2 * ["rank 0 of 2 local 0 sum 3", "rank 1 of 2 local 1 sum 3"]
    )


@pytest.mark.mpi
@pytest.mark.skipif(not os.environ.get("RANKWISE_LONG"), reason="RANKWISE_LONG=1 runs it; mpirun itself is tested with run")
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun here")
def test_open_mpi_needs_no_variables_of_ours_on_one_host(tmp_path: Path) -> None:
    mpirun = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2")
    done = launch(tmp_path, *mpirun, sys.executable, "job.py")

    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n"))[1:] == ["rank 0 of 2 local 0 sum 3", "rank 1 of 2 local 1 sum 3"]


@pytest.mark.live
def test_slurm_and_kubernetes_variables_are_enough(cast: Stage) -> None:
    slurm = {"SLURM_NTASKS": "2", "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "localhost", "SLURM_LOCALID": None}
    parts = [cast.play("sum", {**slurm, "SLURM_PROCID": str(rank)}) for rank in range(2)]
    port = str(free_port())
    pods = [cast.play("sum", {"RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}) for r in range(2)]
    cast.end([*parts, *pods])

    assert [part.code for part in [*parts, *pods]] == [0] * 4, parts[0].text + pods[0].text
    assert [part.told["local"] for part in [*parts, *pods]] == [0, 1, 0, 1]  # counted, as nobody said it
