"""Clients of other people, each in its own environment: KServe's, those of the protocol's descriptions, NVIDIA's perf_analyzer."""

from __future__ import annotations

import csv
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.environments import Unavailable, environment, perf_analyzer
from rankwise.serve.serving import Serving
from tests.serve.http_client import Client

pytestmark = [pytest.mark.live, pytest.mark.timeout(1200)]
REQUESTS = 200
SCRIPTS = Path(__file__).with_name("clients")
CLIENTS = {
    "with_kserve.py": ("kserve==0.21.0",),
    "with_open_inference.py": ("open-inference-openapi==2.0.0.1", "open-inference-grpc==2.0.0", "protobuf<7"),
}


@pytest.mark.parametrize("script", CLIENTS)
def test_clients_from_pypi(script: str, serving: Serving, client: Client) -> None:
    try:
        python = environment(script.removesuffix(".py"), *CLIENTS[script])
    except Unavailable as error:
        pytest.skip(str(error))
    done = subprocess.run([python, SCRIPTS / script, serving.http, serving.grpc], capture_output=True, text=True, timeout=300)

    assert done.returncode == 0 and done.stdout.endswith("fine\n"), done.stderr


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer_runs_to_the_end_and_counts_as_we_do(protocol: str, serving: Serving, client: Client, tmp_path: Path) -> None:
    try:
        program, variables = perf_analyzer()
    except Unavailable as error:
        pytest.skip(str(error))
    address = serving.http if protocol == "http" else serving.grpc
    for concurrency in (1, 2, 4, 8, 16):
        before = statistics(client)
        table = tmp_path / f"{concurrency}.csv"
        command = [program, "-m", "sums", "-u", address, "-i", protocol, "--concurrency-range", str(concurrency), "-f", table]
        limits = ["--request-count", str(REQUESTS), "-v"]
        done = subprocess.run([*command, *limits], env=variables, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        after = settled(client)
        counted = client_count(done.stdout)
        with table.open() as file:
            row = next(csv.DictReader(file))
        assert int(row["Concurrency"]) == concurrency and float(row["Inferences/Second"]) > 0
        assert after["fail"] == before["fail"]
        assert counted == REQUESTS == after["success"] - before["success"] == after["rows"] - before["rows"]


def statistics(client: Client) -> dict[str, int]:
    client.close()  # the program may have run for longer than the server keeps an idle connection
    said: dict[str, Any] = client.get("/v2/models/sums/stats").json["model_stats"][0]
    found = {what: said["inference_stats"][what]["count"] for what in ("success", "fail")}
    return {**found, "rows": said["inference_count"]}


def settled(client: Client) -> dict[str, int]:
    """When nothing is under way any more."""
    last: dict[str, int] = {}
    while (now := statistics(client)) != last:
        last = now
        time.sleep(0.3)
    return now


def client_count(told: str) -> int:
    """Of the client's part of its last report."""
    counts = [line for line in told.splitlines() if line.strip().startswith("Request count:")]
    return int(counts[-1].split(":")[1])
