"""The corpus: made once per run by the real libraries, in two processes, and shared by all workers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ports import free_port

MAKER = Path(__file__).with_name("make_corpus.py")
PATIENCE_S = 600


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The folder with all good checkpoints; whichever worker comes first makes it, the others wait for it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "weights-corpus"
    try:
        folder.mkdir()
    except FileExistsError:
        deadline = time.monotonic() + PATIENCE_S
        while not (folder / "done").exists():
            assert time.monotonic() < deadline and not (folder / "failed").exists(), "the other worker did not finish the corpus"
            time.sleep(0.1)
        return folder
    try:
        make_corpus(folder)
    except BaseException:
        (folder / "failed").touch()
        raise
    (folder / "done").touch()
    return folder


def make_corpus(folder: Path) -> None:
    port = str(free_port())
    scratch = folder / "tmp"
    scratch.mkdir()
    shared = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(scratch),
    }
    ranks = [start_rank(rank, folder, shared) for rank in range(2)]
    try:
        codes = [rank.wait(timeout=PATIENCE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert codes == [0, 0], "".join((folder / f"rank-{rank}.log").read_text()[-3000:] for rank in range(2))
    shutil.rmtree(scratch)


def start_rank(rank: int, folder: Path, shared: dict[str, str]) -> subprocess.Popen[bytes]:
    environment = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    with (folder / f"rank-{rank}.log").open("wb") as log:
        return subprocess.Popen([sys.executable, str(MAKER), str(folder)], env=environment, stdout=log, stderr=log)
