"""Three hosts, one with a thin way out: its network is named, and a job on three equal ones gets no word."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path

import pytest

from tests.lab.faults import thin_link
from tests.lab.hosts import lab, why_no_lab

SCRIPT = """\
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(512, 512))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
end, is_over = time.time() + 20, torch.zeros(1)
while not is_over:
    optimizer.zero_grad()
    model(torch.randn(8, 512)).sum().backward()
    optimizer.step()
    is_over[0] = time.time() > end
    dist.all_reduce(is_over)
dist.destroy_process_group()
"""


@pytest.mark.live
@pytest.mark.netns
@pytest.mark.timeout(300)
@pytest.mark.parametrize("rate", ["5mbit", ""])
def test_the_host_with_a_thin_way_out_is_named(tmp_path: Path, rate: str) -> None:
    if reason := why_no_lab():
        pytest.skip(reason)
    (tmp_path / "train.py").write_text(SCRIPT)
    with lab(3) as hosts, thin_link(hosts[1], rate) if rate else contextlib.nullcontext():
        for i, host in enumerate(hosts):
            meeting = ("--nnodes", "3", "--node-rank", str(i), "--master-addr", "node-a", "--master-port", "29511", "--nproc-per-node", "1")
            host.start((sys.executable, "-m", "rankwise", "run", "--out", tmp_path / host.name, *meeting, "train.py"), cwd=tmp_path)
        end = time.monotonic() + 240
        while any(process.poll() is None for host in hosts for process in host.processes):
            assert time.monotonic() < end
            time.sleep(0.2)

    for host in hosts:
        verdict = json.loads((tmp_path / host.name / "verdict.json").read_text())
        told = [(finding["code"], finding["summary"]) for finding in verdict["findings"]]
        assert verdict["outcome"] == "completed"
        assert [code for code, _ in told] == (["RW515"] if rate else []), told
        assert not rate or "the network of node-b is slow" in told[0][1] or "from node-b to" in told[0][1]
