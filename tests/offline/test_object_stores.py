"""`rankwise predict` in S3, Google's and Azure's stores, over real servers: the same bytes, also after SIGKILL, and no secret anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.families import LONG
from tests.offline.conftest import Store
from tests.offline.inputs import write
from tests.offline.test_kills import BATCH, COUNT, OFTEN, ROOT

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


def start(store: Store, home: Path, source: str, output: str, *more: str) -> subprocess.Popen[str]:
    words = ["--build", "tests.offline.nets:slow", "--input", source, "--output", output, "--json", "--batch", str(BATCH), *more]
    env = {**os.environ, **store.env, "XDG_CACHE_HOME": str(home), "PREDICT_PAUSE_S": "0.02"}
    return subprocess.Popen(
        [sys.executable, "-c", OFTEN, "predict", *words], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen[str], store: Store) -> dict[str, Any]:
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stderr
    assert store.secret not in stdout + stderr
    return dict(json.loads(stdout[stdout.index("{") :]))


def killed_in_the_middle(process: subprocess.Popen[str], store: Store, output: str) -> None:
    deadline = time.monotonic() + 120
    done = 0
    try:
        while done < 3:
            assert process.poll() is None and time.monotonic() < deadline
            sizes = store.sizes()
            assert all(size for name, size in sizes.items() if "/unfinished-" not in name), "a file appears before it is complete"
            done = sum(name.startswith(f".{output}.predict/part-") for name in sizes)
    finally:
        process.kill()
        told = process.communicate()
    assert done >= 3, told


TABLE = ("--columns", "x", "--keep", "id")


@pytest.mark.parametrize("is_other_machine", [True, pytest.param(False, marks=LONG)])
def test_killed_it_goes_on_to_the_very_same_bytes(store: Store, tmp_path: Path, is_other_machine: bool) -> None:
    path, _ = write(tmp_path, "parquet", COUNT)
    one = ended(start(store, tmp_path, str(path), str(tmp_path / "one.parquet"), *TABLE, "--workers", "0"), store)
    words = (store.put(path), store.address("out.parquet"), *TABLE, "--workers", "2")

    killed_in_the_middle(start(store, tmp_path / "a", *words), store, "out.parquet")
    done = ended(start(store, tmp_path / ("b" if is_other_machine else "a"), *words), store)

    assert done["rows"] == COUNT and done["resumed_rows"] > 0 and done["failed"] == one["failed"] > 0
    assert store.read("out.parquet") == (tmp_path / "one.parquet").read_bytes()
    assert store.read("out.parquet.errors.jsonl") == Path(one["errors"]).read_bytes()
    assert store.names() == [".out.parquet.predicted", "out.parquet", "out.parquet.errors.jsonl", "x.parquet"]
    for kept in (store.read(".out.parquet.predicted"), *(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())):
        assert store.secret.encode() not in kept


@pytest.mark.parametrize("kind", ["npy", "jsonl", "files", pytest.param("csv", marks=LONG), pytest.param("safetensors", marks=LONG)])
def test_every_format_from_a_store_to_it(store: Store, tmp_path: Path, kind: str) -> None:
    path, chosen = write(tmp_path, kind, 60)
    columns = [f"--{name}={','.join(names)}" for name, names in chosen.items() if name == "columns"]
    suffix = "npy" if kind == "files" else kind
    ended(start(store, tmp_path, str(path), str(tmp_path / f"one.{suffix}"), *columns, "--workers", "0"), store)
    ended(start(store, tmp_path, store.put(path), store.address(f"out.{suffix}"), *columns, "--workers", "0"), store)

    assert store.read(f"out.{suffix}") == (tmp_path / f"one.{suffix}").read_bytes()


def test_a_bucket_that_is_not_there_is_told_before_anything_runs(store: Store, tmp_path: Path) -> None:
    path, _ = write(tmp_path, "parquet", 60)
    address = store.address("out.parquet").replace("jobs/", "nobodys/")
    process = start(store, tmp_path, str(path), address, *TABLE, "--workers", "0")
    _, stderr = process.communicate(timeout=100)

    assert process.returncode == 2 and "RW741" in stderr and "nobodys/out.parquet cannot be" in " ".join(stderr.split()), stderr
    assert "Traceback" not in stderr and store.secret not in stderr
