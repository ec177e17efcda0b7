"""While a job runs: verdict.json is always whole, a stall is reported without stopping the job, and nothing private gets out."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.launch.jobs import environment, eventually, forked_ranks, line_of

Start = Callable[..., subprocess.Popen[bytes]]
SECRETS = {
    "WANDB_API_KEY": "s3cr3t-wandb-0f31",
    "HF_TOKEN": "s3cr3t-hf-77aa",
    "AWS_SECRET_ACCESS_KEY": "s3cr3t-aws-9911",
    "NCCL_FOO_TOKEN": "s3cr3t-nccl-4242",
    "TORCH_HOME_PASSWORD": "s3cr3t-torch-1717",
    "SLURM_JWT": "s3cr3t-slurm-2828",
    "CUDA_LICENSE_key": "s3cr3t-cuda-3131",
    "OMPI_COMM_WORLD_auth": "s3cr3t-ompi-5656",
    "DATABASE_URL": "postgres://user:s3cr3t-db-6767@host/db",
}
# Rank 1 is busy elsewhere until it is told to go on; what rank 0 waits in is no deadlock.
BUSY = """
def work(rank):
    if rank == 1:
        wait_for("go")  # busy
    dist.barrier()  # waits
"""
# No rank can ever go on by itself.
DEADLOCK = """
def work(rank):
    if rank == 0:
        dist.all_reduce(torch.ones(4))  # reduces
    else:
        dist.broadcast(torch.ones(4), src=0)  # broadcasts
"""


class Reader(threading.Thread):
    """Reads a file a thousand times a second, and remembers every outcome it saw, and whatever was not whole."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path, self.reads, self.is_over = path, 0, False
        self.broken: list[str] = []
        self.outcomes: list[str] = []
        self.codes: set[str] = set()

    def run(self) -> None:
        while not self.is_over:
            time.sleep(0.001)
            try:
                text = self.path.read_text()
            except FileNotFoundError:
                continue
            self.reads += 1
            try:
                verdict = json.loads(text)
                self.codes |= {finding["code"] for finding in verdict["findings"]}
                if self.outcomes[-1:] != [verdict["outcome"]]:
                    self.outcomes.append(verdict["outcome"])
            except (ValueError, KeyError):
                self.broken.append(text)


def test_a_busy_rank_is_reported_and_the_job_goes_on(tmp_path: Path, start: Start) -> None:
    script = forked_ranks(tmp_path, BUSY)
    out = tmp_path / "out"
    run = start(
        "--out", out, "--on-stall", "report", "--stall-after", "3", "--", sys.executable, script, cwd=tmp_path, env=environment(**SECRETS)
    )
    reader = Reader(out / "verdict.json")
    reader.start()
    try:
        eventually("a verdict", lambda: reader.codes, 120)
        verdict = json.loads((out / "verdict.json").read_text())
        check_nothing_listens(run.pid)
        (live,) = Path(os.environ["TMPDIR"]).glob("rankwise-*")
        assert run.poll() is None  # told, not stopped
        assert stat.S_IMODE(live.stat().st_mode) == 0o700
        assert_no_secret(live)
        (tmp_path / "go").touch()
        assert run.wait(timeout=90) == 0
    finally:
        reader.is_over = True
        reader.join()

    assert not reader.broken
    assert reader.outcomes[-1] == "completed"
    code = verdict["findings"][0]["code"]
    told = (tmp_path / "run.err").read_text()
    assert f"\n{code}  " in told
    assert f"\n{code}  taken back: " in told
    (culprit,) = verdict["findings"][0]["culprits"]
    assert (culprit["rank"], Path(culprit["file"]).name) == (1, "job.py")
    assert not verdict["findings"][0]["certain"]
    assert verdict["exit_code"] is None
    assert [wait["line"] for wait in verdict["findings"][0]["waiting"]] == [line_of(script, "waits")]
    assert {path.name for path in out.iterdir()} == {"verdict.json", "evidence", "logs", "report.html"}
    assert_private(out)
    assert_no_secret(out)


@pytest.mark.live
def test_a_deadlock_that_is_only_to_be_reported_is_not_ended(tmp_path: Path, start: Start) -> None:
    script = forked_ranks(tmp_path, DEADLOCK)
    out = tmp_path / "out"
    run = start("--out", out, "--on-stall", "report", "--stall-after", "3", "--", sys.executable, script, cwd=tmp_path)
    reader = Reader(out / "verdict.json")
    reader.start()
    try:
        eventually("a verdict", lambda: "hung" in reader.outcomes, 120)
        ranks = [process.pid for process in psutil.Process(run.pid).children(recursive=True)]
        # Long enough for the watcher to look again, several times: it says nothing new, and stops nothing.
        first = json.loads((out / "verdict.json").read_text())
        reads = reader.reads
        eventually("some time", lambda: reader.reads > reads + 3000)
        assert run.poll() is None
        assert all(psutil.pid_exists(pid) for pid in ranks)
        run.terminate()
        run.wait(timeout=60)
    finally:
        reader.is_over = True
        reader.join()

    assert not reader.broken
    assert first["exit_code"] is None
    finding = first["findings"][0]
    assert finding["code"] in ("RW202", "RW203")
    assert (finding["certain"], finding["severity"]) == (True, "error")
    last = json.loads((out / "verdict.json").read_text())
    assert last["findings"] == first["findings"]  # that we ended it in the end does not change what was wrong
    assert (tmp_path / "run.err").read_text().count(f"\n{finding['code']} ") == 1  # told once


def check_nothing_listens(launcher: int) -> None:
    """The launcher, its guardian and the ranks: no port but what torch itself opens (gloo's, one per rank)."""
    family = [psutil.Process(launcher), *psutil.Process(launcher).children(recursive=True)]
    listening = {
        process.pid: [link.laddr for link in process.net_connections("inet") if link.status == psutil.CONN_LISTEN] for process in family
    }
    python = [process for process in family if "job.py" in " ".join(process.cmdline()) and "guardian" not in " ".join(process.cmdline())]
    ranks = [process.pid for process in python if process.pid != launcher and process.ppid() in {one.pid for one in python}]
    assert not [pid for pid, ports in listening.items() if ports and pid not in ranks], listening
    assert all(len(listening[pid]) <= 1 for pid in ranks), listening


def assert_private(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        if stat.S_ISSOCK(status.st_mode):  # behind a folder nobody else may enter
            continue
        wanted = 0o700 if stat.S_ISDIR(status.st_mode) else 0o600
        assert stat.S_IMODE(status.st_mode) == wanted, f"{path} is {stat.S_IMODE(status.st_mode):o}"


def assert_no_secret(folder: Path) -> None:
    leaks = [path for path in folder.rglob("*") if path.is_file() and b"s3cr3t" in path.read_bytes()]
    assert not leaks


def test_a_folder_that_was_there_is_used_and_closed_to_others(tmp_path: Path, run_rankwise: Callable[..., Any]) -> None:
    """Made by the user with the usual rights: what we put inside is private all the same."""
    (tmp_path / "out").mkdir(mode=0o755)
    ran = run_rankwise("run", "--out", tmp_path / "out", "--", "sh", "-c", "echo hello", env=SECRETS)

    assert ran.code == 0
    for path in (tmp_path / "out").iterdir():
        assert_private(path)
    assert_no_secret(tmp_path / "out")


def test_by_default_each_run_has_a_folder_of_its_own(tmp_path: Path, run_rankwise: Callable[..., Any]) -> None:
    for _ in range(3):
        assert run_rankwise("run", "--", "true", cwd=tmp_path).code == 0

    folders = list((tmp_path / "rankwise-runs").iterdir())
    assert len(folders) == 3
    for folder in folders:
        assert json.loads((folder / "verdict.json").read_text())["outcome"] == "completed"
        assert_private(folder)
