"""Ranks killed under `rankwise run --max-restarts`: the job resumes and ends with the weights of an undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("elastic_job.py")
is_long = os.environ.get("RANKWISE_LONG") == "1"


def run(folder: Path, num_kills: int, dice: random.Random, *options: str) -> list[str]:
    """Run the job, killing a random rank so many times at a random moment of its training; returns what each moment was."""
    folder.mkdir()
    command = [sys.executable, "-m", "rankwise", "run", "--out", str(folder / "run"), "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", str(num_kills + 1), str(JOB), str(folder), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    moments = []
    try:
        for start in range(num_kills):
            pids = [ready(process, folder / f"ready-{start}-{rank}") for rank in (0, 1)]
            time.sleep(dice.uniform(0, 1.0))
            saving = any((folder / "runs").glob(".step-*"))
            victim = dice.randrange(2)
            os.kill(pids[victim], signal.SIGKILL)
            moments.append(f"rank {victim}{' during a save' if saving else ''}")
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, said.decode()
    return moments


def ready(process: subprocess.Popen[bytes], path: Path) -> int:
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_text()):
        assert process.poll() is None and time.monotonic() < deadline, f"no {path.name}"
        time.sleep(0.01)
    return int(path.read_text().split()[0])


@pytest.mark.timeout(900 if is_long else 180)
def test_a_job_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    run(tmp_path / "undisturbed", 0, random.Random(0))
    expected = torch.load(tmp_path / "undisturbed" / "final.pt", weights_only=True)

    jobs = [(10, seed, ("--beside",) if seed % 2 else ()) for seed in range(3)] if is_long else [(2, 7, ())]
    for num_kills, seed, options in jobs:
        folder = tmp_path / f"killed-{seed}"
        moments = run(folder, num_kills, random.Random(seed), *options)
        print(f"seed {seed}: {', '.join(moments)}")
        final = torch.load(folder / "final.pt", weights_only=True)
        assert final.keys() == expected.keys()
        assert all(torch.equal(final[name], expected[name]) for name in expected), (seed, moments)
