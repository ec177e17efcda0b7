"""`predict` and `serve` with `--engine ray`: the same bytes, also when a node or the driver is lost in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Nodes
from tests.offline.conftest import S3, s3  # noqa: F401  a fixture
from tests.offline.inputs import write
from tests.offline.test_kills import BATCH, OFTEN

pytestmark = [pytest.mark.live, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore::ResourceWarning")]
ROOT = Path(__file__).parents[2]
COUNT = 1200


def predict_s3(server: S3, home: Path, *more: str) -> subprocess.Popen[str]:
    words = ["--build", "tests.offline.nets:slow", "--columns", "x", "--keep", "id", "--json", "--batch", str(BATCH), *more]
    command = [sys.executable, "-c", OFTEN, "predict", "--input", "s3://jobs/x.parquet", "--output", "s3://jobs/out.parquet", *words]
    env = {**os.environ, **server.env, "XDG_CACHE_HOME": str(home)}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def predict(folder: Path, output: str, *more: str) -> subprocess.Popen[str]:
    words = ["--build", "tests.offline.nets:slow", "--input", str(folder / "x.parquet"), "--columns", "x", "--keep", "id", "--json"]
    command = [sys.executable, "-c", OFTEN, "predict", *words, "--output", str(folder / output), "--batch", str(BATCH), *more]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stderr
    return dict(json.loads(stdout[stdout.index("{") :]))


def parts_done(folder: Path, output: str) -> int:
    return len(list((folder / f".{output}.predict").glob("part-*")))


def wait_for_parts(process: subprocess.Popen[str], folder: Path, output: str, count: int) -> None:
    deadline = time.monotonic() + 100
    while parts_done(folder, output) < count:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "parquet", COUNT)
    return tmp_path


def test_predict_survives_a_node_and_the_driver_with_the_very_same_bytes(nodes: Nodes, folder: Path) -> None:
    one = ended(predict(folder, "one.parquet", "--workers", "2"))
    ray = ("--engine", "ray", "--address", nodes.address)

    first = predict(folder, "ray.parquet", *ray)
    wait_for_parts(first, folder, "ray.parquet", 2)
    nodes.kill(nodes.workers[0])
    wait_for_parts(first, folder, "ray.parquet", 4)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    nodes.fill_up()
    done = ended(predict(folder, "ray.parquet", *ray))

    assert done["rows"] == COUNT and done["resumed_rows"] > 0 and done["failed"] == one["failed"] > 0
    assert Path(done["errors"]).read_bytes() == Path(one["errors"]).read_bytes()
    assert (folder / "ray.parquet").read_bytes() == (folder / "one.parquet").read_bytes()


def test_predict_from_s3_to_s3_survives_them_too_and_tells_no_secret(nodes: Nodes, folder: Path, s3: S3) -> None:  # noqa: F811
    one = ended(predict(folder, "one.parquet", "--workers", "2"))
    s3.put(folder / "x.parquet")
    ray = ("--engine", "ray", "--address", nodes.address)

    def wait_for_parts_there(process: subprocess.Popen[str], count: int) -> None:
        deadline = time.monotonic() + 100
        while sum(name.startswith(".out.parquet.predict/part-") for name in s3.names()) < count:
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.05)

    first = predict_s3(s3, folder / "a", *ray)
    wait_for_parts_there(first, 2)
    nodes.kill(nodes.workers[0])
    wait_for_parts_there(first, 4)
    first.send_signal(signal.SIGKILL)
    told = "".join(first.communicate())
    nodes.fill_up()
    last = predict_s3(s3, folder / "b", *ray)  # another machine, which has nothing of it
    stdout, stderr = last.communicate(timeout=200)
    done = json.loads(stdout[stdout.index("{") :])

    assert last.returncode == 0 and done["rows"] == COUNT and done["resumed_rows"] > 0 and done["failed"] == one["failed"]
    assert s3.read("out.parquet") == (folder / "one.parquet").read_bytes()
    logs = [path.read_bytes() for path in Path(nodes.folder).rglob("*") if path.is_file() and path.suffix in (".log", ".out", ".err")]
    assert logs and not any(s3.secret.encode() in text for text in (*logs, (told + stdout + stderr).encode()))


def test_serve_answers_from_the_cluster(nodes: Nodes, tmp_path: Path, free_port: int) -> None:
    command = [sys.executable, "-m", "rankwise", "serve", "--build", "tests.pool.models:Moody", "--input", "x:FP32:-1"]
    options = ["--http", f"127.0.0.1:{free_port}", "--grpc", "", "--engine", "ray", "--address", nodes.address, "--quiet"]
    server = subprocess.Popen([*command, *options], cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        assert server.stdout is not None and any("serving model" in line for line in server.stdout)
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1.0, 2.5]}]}
        request = urllib.request.Request(f"http://127.0.0.1:{free_port}/v2/models/model/infer", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["outputs"][0]["data"] == [2.0, 5.0]
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=30) == 0
        assert server.stdout is not None
        server.stdout.close()
