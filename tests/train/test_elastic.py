"""Ranks killed under `rankwise run --max-restarts`: the job resumes and ends with the weights of an undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.farm import Farm

JOB = Path(__file__).with_name("elastic_job.py")
is_long = os.environ.get("RANKWISE_LONG") == "1"


@dataclass
class Job:
    """Two ranks under `rankwise run`, of which one is killed now and then."""

    folder: Path
    num_epochs: int
    num_kills: int = 0
    seed: int = 0
    options: tuple[str, ...] = ()
    moments: list[str] = field(default_factory=list)

    def start(self) -> Job:
        self.folder.mkdir()
        command = [sys.executable, "-m", "rankwise", "run", "--out", str(self.folder / "run"), "--standalone", "--nproc-per-node", "2"]
        command += ["--max-restarts", str(self.num_kills + 1), str(JOB), str(self.folder), str(self.num_epochs), *self.options]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)
        return self

    def disturb(self) -> None:
        """Kill a random rank at a random moment of its training, again and again."""
        dice = random.Random(self.seed)
        for start in range(self.num_kills):
            pids = [self.ready(start, rank) for rank in (0, 1)]
            time.sleep(dice.uniform(0, 1.0))
            is_saving = any((self.folder / "runs").glob(".step-*"))
            victim = dice.randrange(2)
            os.kill(pids[victim], signal.SIGKILL)
            self.moments.append(f"rank {victim}{' during a save' if is_saving else ''}")

    def ready(self, start: int, rank: int) -> int:
        """The rank's process, once it has resumed."""
        path = self.folder / f"ready-{start}-{rank}"
        deadline = time.monotonic() + 90
        while not (path.exists() and path.read_text()):
            assert self.process.poll() is None and time.monotonic() < deadline, f"no {path.name}"
            time.sleep(0.01)
        return int(path.read_text().split()[0])

    def weights(self) -> dict[str, Any]:
        said, _ = self.process.communicate(timeout=300)
        assert self.process.returncode == 0, said.decode()
        return dict(torch.load(self.folder / "final.pt", weights_only=True))

    def end(self) -> None:
        """The watcher ends its job when it is told to; it has nothing left to do where the job has ended by itself."""
        self.process.terminate()
        self.process.wait(timeout=30)
        assert self.process.stdout
        self.process.stdout.close()


@pytest.mark.live
@pytest.mark.timeout(1200 if is_long else 180)
def test_a_job_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one(farm: Farm, tmp_path: Path) -> None:
    num_epochs = 60 if is_long else 6
    kills = [(10, seed, ("--beside",) if seed % 2 else ()) for seed in range(3)] if is_long else [(1, 7, ())]
    jobs = [Job(tmp_path / f"killed-{seed}", num_epochs, num_kills, seed, options) for num_kills, seed, options in kills]
    (tmp_path / "undisturbed").mkdir()
    farm.run("learn", 2, jobs="tests.train.elastic_job", timeout_s=150, folder=tmp_path / "undisturbed", num_epochs=num_epochs)
    undisturbed = torch.load(tmp_path / "undisturbed" / "final.pt", weights_only=True)
    for job in jobs:
        job.start()
        try:
            job.disturb()
            weights = job.weights()
        finally:
            job.end()
        print(f"seed {job.seed}: {', '.join(job.moments)}")
        for name, expected in undisturbed.items():
            assert torch.equal(weights[name], expected), (name, job.moments)
