"""`rankwise predict` from S3 to S3, over a real server: the same bytes, also after SIGKILL, and no secret anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.offline.conftest import S3
from tests.offline.inputs import write
from tests.offline.test_kills import BATCH, COUNT, OFTEN, ROOT

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


def start(s3: S3, home: Path, source: str, output: str, *more: str) -> subprocess.Popen[str]:
    words = ["--build", "tests.offline.nets:slow", "--input", source, "--output", output, "--json", "--batch", str(BATCH), *more]
    env = {**os.environ, **s3.env, "XDG_CACHE_HOME": str(home), "PREDICT_PAUSE_S": "0.02"}
    return subprocess.Popen(
        [sys.executable, "-c", OFTEN, "predict", *words], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen[str], s3: S3) -> dict[str, Any]:
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stderr
    assert s3.secret not in stdout + stderr
    return dict(json.loads(stdout[stdout.index("{") :]))


def killed_in_the_middle(process: subprocess.Popen[str], s3: S3, output: str) -> None:
    deadline = time.monotonic() + 120
    while sum(name.startswith(f".{output}.predict/part-") for name in s3.names()) < 3:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    process.kill()
    process.communicate()


TABLE = ("--columns", "x", "--keep", "id")


@pytest.mark.parametrize("is_other_machine", [False, True])
def test_killed_it_goes_on_to_the_very_same_bytes(s3: S3, tmp_path: Path, is_other_machine: bool) -> None:
    path, _ = write(tmp_path, "parquet", COUNT)
    one = ended(start(s3, tmp_path, str(path), str(tmp_path / "one.parquet"), *TABLE, "--workers", "0"), s3)
    words = (s3.put(path), "s3://jobs/out.parquet", *TABLE, "--workers", "2")

    killed_in_the_middle(start(s3, tmp_path / "a", *words), s3, "out.parquet")
    done = ended(start(s3, tmp_path / ("b" if is_other_machine else "a"), *words), s3)

    assert done["rows"] == COUNT and done["resumed_rows"] > 0 and done["failed"] == one["failed"] > 0
    assert s3.read("out.parquet") == (tmp_path / "one.parquet").read_bytes()
    assert s3.read("out.parquet.errors.jsonl") == Path(one["errors"]).read_bytes()
    assert s3.names() == [".out.parquet.predicted", "out.parquet", "out.parquet.errors.jsonl", "x.parquet"]
    for kept in (s3.read(".out.parquet.predicted"), *(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())):
        assert s3.secret.encode() not in kept


@pytest.mark.parametrize("kind", ["npy", "csv", "jsonl", "safetensors", "files"])
def test_every_format_from_s3_to_s3(s3: S3, tmp_path: Path, kind: str) -> None:
    path, chosen = write(tmp_path, kind, 60)
    columns = [f"--{name}={','.join(names)}" for name, names in chosen.items() if name == "columns"]
    suffix = "npy" if kind == "files" else kind
    ended(start(s3, tmp_path, str(path), str(tmp_path / f"one.{suffix}"), *columns, "--workers", "0"), s3)
    ended(start(s3, tmp_path, s3.put(path), f"s3://jobs/out.{suffix}", *columns, "--workers", "0"), s3)

    assert s3.read(f"out.{suffix}") == (tmp_path / f"one.{suffix}").read_bytes()


def test_a_bucket_that_is_not_there_is_told_before_anything_runs(s3: S3, tmp_path: Path) -> None:
    path, _ = write(tmp_path, "parquet", 60)
    process = start(s3, tmp_path, str(path), "s3://nobodys/out.parquet", *TABLE, "--workers", "0")
    _, stderr = process.communicate(timeout=100)

    assert process.returncode == 2 and "RW741" in stderr and "s3://nobodys/out.parquet cannot be written" in stderr, stderr
    assert "Traceback" not in stderr and s3.secret not in stderr
