"""SIGKILL to the parent or to a worker, at random moments of a real job: the same command ends with the very same bytes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.offline.inputs import write

ROOT = Path(__file__).parents[2]
IS_LONG = bool(os.environ.get("RANKWISE_LONG"))
KILLS = 40 if IS_LONG else 2
COUNT = 1200
BATCH = 8
PATIENCE_S = 120
# The command line as it is, but with a part every tenth of a second, so that a short job has many.
OFTEN = """
import sys
import rankwise.offline.running
from rankwise.cli.main import main
rankwise.offline.running._PART_S = 0.1
sys.exit(main(sys.argv[1:]))
"""


def command(folder: Path, output: str) -> list[str]:
    words = ["--build", "tests.offline.nets:slow", "--input", str(folder / "x.parquet"), "--columns", "x", "--keep", "id", "--json"]
    return [sys.executable, "-c", OFTEN, "predict", *words, "--output", str(folder / output), "--workers", "2", "--batch", str(BATCH)]


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    return {**os.environ, "PREDICT_PAUSE_S": "0.02", "PYTHONPATH": path}


def run_to_the_end(folder: Path, output: str) -> dict[str, int]:
    done = subprocess.run(command(folder, output), capture_output=True, text=True, timeout=PATIENCE_S, env=environment(), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def parts_of(folder: Path, output: str) -> int:
    return len(list((folder / f".{output}.predict").glob("part-*")))


def run_and_kill(folder: Path, output: str, draw: random.Random) -> None:
    """Mostly in the middle of the work, now and then during the start; sometimes a worker dies first."""
    before = parts_of(folder, output)
    with subprocess.Popen(command(folder, output), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), cwd=ROOT) as process:
        if draw.random() < 0.2:
            wait_for(process, draw.uniform(0.05, 3))
        else:
            wait_for(process, PATIENCE_S, lambda: parts_of(folder, output) > before)
            wait_for(process, draw.uniform(0, 1.2))
        workers = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        if workers and draw.random() < 0.3:
            draw.choice(workers).kill()  # the job goes on without it
            wait_for(process, draw.uniform(0, 0.5))
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[bytes], seconds: float, has_come: Callable[[], bool] = lambda: False) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None and not has_come():
        time.sleep(0.01)


@pytest.mark.live
@pytest.mark.timeout(3000 if IS_LONG else 240)
def test_killed_at_random_moments_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path, "parquet", COUNT)
    run_to_the_end(tmp_path, "whole.parquet")
    wanted = (tmp_path / "whole.parquet").read_bytes(), (tmp_path / "errors.jsonl").read_bytes()
    draw = random.Random(20)
    resumed = 0
    for kill in range(KILLS):
        (tmp_path / "errors.jsonl").unlink(missing_ok=True)
        run_and_kill(tmp_path, "out.parquet", draw)
        if (tmp_path / "out.parquet").exists() or kill == KILLS - 1 or draw.random() < 0.2:
            resumed += run_to_the_end(tmp_path, "out.parquet")["resumed_rows"] > 0
            assert (tmp_path / "out.parquet").read_bytes() == wanted[0]
            assert (tmp_path / "errors.jsonl").read_bytes() == wanted[1]
            assert not (tmp_path / ".out.parquet.predict").exists()
            (tmp_path / "out.parquet").unlink()

    assert resumed


@pytest.mark.live
def test_a_row_that_ends_its_worker_is_found_and_set_aside(tmp_path: Path) -> None:
    path, _ = write(tmp_path, "npy", 64)
    words = ["--build", "tests.offline.nets:deadly", "--input", str(path), "--output", str(tmp_path / "out.jsonl"), "--batch", "8"]
    done = subprocess.run(
        [sys.executable, "-m", "rankwise", "predict", *words, "--workers", "1", "--json"],
        capture_output=True, text=True, timeout=PATIENCE_S, env=environment(), cwd=ROOT,
    )  # fmt: skip
    bad = np.flatnonzero(np.load(path)[:, 0] > 2.5).tolist()

    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "errors.jsonl").read_text().splitlines()]
    assert [line["row"] for line in lines] == bad
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 64 - len(bad)
