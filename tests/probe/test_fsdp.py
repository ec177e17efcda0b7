"""The forwards of sharded models are marked where the user calls them, once each, and compute what they compute without the probe."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.evidence.journal import Journal
from rankwise.evidence.ring import read_ring
from tests.probe.probed import line_of, run_bare, run_script, write_script

SHARDED = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
mesh = init_device_mesh("cpu", (1,))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
for _ in range(3):
    loss = model(torch.ones(2, 4)).sum()  # forward
    loss.backward()
print(loss.item().hex())
dist.destroy_process_group()
"""


@pytest.mark.live
def test_each_forward_of_a_sharded_model_is_marked_once(live: Path, tmp_path: Path) -> None:
    script = write_script(tmp_path, SHARDED, "sharded.py")

    with_probe = run_script(script, live, args=(str(tmp_path / "store-a"),), OMP_NUM_THREADS="1")
    without = run_bare(script, live, args=(str(tmp_path / "store-b"),), OMP_NUM_THREADS="1")

    assert with_probe.code == 0, with_probe.err
    assert with_probe.out == without.out
    assert not with_probe.lines("broken"), with_probe.lines("broken")
    (pid,) = with_probe.journals()
    journal = Journal(pid)
    journal.read_more(live / f"p-{pid}.jsonl")
    view = read_ring(live / f"r-{pid}", journal)
    assert view is not None
    forwards = [call for call in view.calls if call.op == "fsdp_forward"]
    assert len(forwards) == 3 and not any(call.is_open for call in forwards)
    assert {call.stack[0].line for call in forwards} == {line_of(script, "forward")}
