"""Inside a rank: what it trains is the same to the last bit, torch.compile still sees through, and torch's window opens in silence."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from rankwise.evidence.flight import read_flights
from rankwise.evidence.journal import Journal
from rankwise.evidence.ring import read_ring
from tests.probe.probed import line_of, run_bare, run_script, write_script

# Two ranks through torch.multiprocessing.spawn; what they compute is printed in full, then rank 1 fails.
SPAWNED = """
import os, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

def train(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(7)
    data = [(torch.randn(4), torch.randn(2)) for _ in range(8)]
    model = DDP(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for x, y in DataLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False)):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            dist.all_reduce(loss.detach(), op=dist.ReduceOp.SUM)  # reduce
    sums = [None, None]
    dist.all_gather_object(sums, [p.detach().sum().item().hex() for p in model.parameters()])
    if rank == 0:
        dist.send(torch.tensor([1.0]), dst=1, tag=0)
        print(loss.item().hex(), sums, flush=True)
        print(dist.all_reduce.__name__, dist.all_reduce.__module__, type(model).__mro__[0].__name__, flush=True)
    else:
        dist.recv(torch.zeros(1), src=0, tag=0)  # recv
        os.write(2, b"a line of the user's own\\n")
    dist.barrier()
    if rank == 1:
        raise ArithmeticError("diverged")  # raise
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(train, (sys.argv[1],), nprocs=2)
"""

COMPILED = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)

def step(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1

compiled = torch.compile(step, backend="eager", fullgraph=True)
print(compiled(torch.ones(3)).tolist())
model = DDP(torch.nn.Linear(3, 2, bias=False))
torch.compile(model, backend="eager")(torch.ones(1, 3)).sum().backward()
print(model.module.weight.grad.sum().item())
inodes = {os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")}
own = 0
for name in ("tcp", "tcp6"):
    for line in open(f"/proc/self/net/{name}").readlines()[1:]:
        fields = line.split()
        own += fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes
print("listening on", own, "ports")
if os.environ.get("RANKWISE_PROBE"):
    import pickle, inspect
    assert pickle.loads(pickle.dumps(dist.all_reduce)) is dist.all_reduce
    assert list(inspect.signature(dist.all_reduce).parameters)[:2] == ["tensor", "op"]
sys.stderr.write("the end\\n")
"""


@pytest.mark.live
@pytest.mark.timeout(400)  # six starts of torch
def test_ranks_train_the_same_and_tell_how_they_ended(tmp_path: Path, live: Path) -> None:
    script = write_script(tmp_path, SPAWNED, "train.py")

    with_probe = run_script(script, live, args=(str(tmp_path / "store-a"),), OMP_NUM_THREADS="1")
    without = run_bare(script, live, args=(str(tmp_path / "store-b"),), OMP_NUM_THREADS="1")

    assert (with_probe.code, with_probe.out) == (without.code, without.out) == (1, without.out)
    assert "all_reduce torch.distributed.distributed_c10d DistributedDataParallel" in with_probe.out
    assert _plain(with_probe.err) - _plain(without.err) == set()  # no line that was not there before: no chatter, no frame of ours

    ranks = {line["rank"]: pid for pid, lines in with_probe.journals().items() for line in lines if line["k"] == "rank"}
    assert set(ranks) == {0, 1}
    (raised,) = [line for line in with_probe.journals()[ranks[1]] if line["k"] == "raise"]
    assert (raised["type"], raised["message"]) == ("ArithmeticError", "diverged")
    assert raised["frames"][0] == [str(script), line_of(script, "raise"), "train"]
    _check_what_was_seen(script, live, ranks)


def _check_what_was_seen(script: Path, live: Path, ranks: dict[int, int]) -> None:
    for rank, pid in ranks.items():
        journal = Journal(pid)
        journal.read_more(live / f"p-{pid}.jsonl")
        assert not journal.broken
        view = read_ring(live / f"r-{pid}", journal)
        assert view is not None
        reduces = [call for call in view.calls if call.op == "all_reduce"]
        assert len(reduces) == 4
        assert {(call.stack[0].file, call.stack[0].line, call.dtype, call.sizes, call.reduce_op) for call in reduces} == {
            (str(script), line_of(script, "reduce"), "float32", (), "SUM")
        }
        assert view.counts["next_batch"] == 4
        assert view.counts["end_of_data"] == 2
        assert view.counts["forward"] == view.counts["backward"] == 4
        peers = [(call.op, call.peer, call.reduce_op, call.tag) for call in view.calls if call.op in ("send", "recv")]
        assert peers == [("send", 1, "0", "") if rank == 0 else ("recv", 0, "0", "")]  # to torch, 0 == ReduceOp.SUM
        # The recorder's last word holds DDP's own traffic too, joined with the user's lines.
        log = read_flights([(live / f"x-{pid}.json").read_bytes()], view.calls)
        assert log is not None
        origins = [entry.origin for entry in log if entry.what.op == "all_reduce"]
        assert origins.count("backward") >= 4
        assert origins.count("user") == 4
        # torch retires an entry a moment after its waiter has gone on: of the last steps some may not be.
        assert all(entry.done for entry in list(log)[: len(log) // 2])
    for path in live.iterdir():
        assert stat.S_IMODE(path.lstat().st_mode) & 0o077 == 0 or stat.S_ISSOCK(path.lstat().st_mode), path


@pytest.mark.live
@pytest.mark.timeout(400)  # torch's compiler is slow to start
def test_compile_sees_through_and_nothing_more_listens(tmp_path: Path, live: Path) -> None:
    script = write_script(tmp_path, COMPILED, "compiled.py")

    with_probe = run_script(script, live, args=(str(tmp_path / "store-a"),), OMP_NUM_THREADS="1")
    without = run_bare(script, live, args=(str(tmp_path / "store-b"),), OMP_NUM_THREADS="1")

    assert with_probe.code == 0, with_probe.err
    assert with_probe.out == without.out
    assert _plain(with_probe.err) - _plain(without.err) == set()
    assert "the end" in with_probe.err
    (pid,) = with_probe.journals()
    assert (live / f"s-{pid}").is_socket()  # the window was open
    assert not with_probe.lines("broken")


def _plain(text: str) -> set[str]:
    """The lines, without what differs from run to run: numbers, times, and marks under columns."""
    lines = (re.sub(r"\d+", "#", line).strip(" ^~") for line in text.splitlines())
    # torch's spawn ends the ranks that are left, if it finds them alive.
    return {line.replace("store-a", "store-b") for line in lines if line and "Terminating process" not in line}
