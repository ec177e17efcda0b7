"""The straggler is named by arrival, with the part of the step in which it is slow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.diagnose.straggler import find_straggler
from tests.silent.stage import Host, evidence

pytestmark = pytest.mark.live  # minutes on two cores
LONG = bool(os.environ.get("RANKWISE_LONG"))
SCRIPT = """
import time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

WHERE, SECONDS = {where!r}, {seconds}


def lag(part):
    if dist.get_rank() == 2 and part == WHERE:
        time.sleep(SECONDS)


class Data(Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, i):
        if i % 4 == 0:
            lag("data")
        return torch.randn(8)


class Slowed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        lag("backward")
        return grad


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        time.sleep(0.03)
        lag("forward")
        return self.b(Slowed.apply(self.a(x)))


class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        lag("optimizer")
        return super().step(closure)


def main(fault):
    model = DDP(Net())
    optimizer = Optimizer(model.parameters(), lr=0.01)
    for x in DataLoader(Data(), batch_size=4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""
WORDS = {"data": "waiting for its data", "forward": "in the forward", "backward": "in the backward", "optimizer": "optimizer's step"}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    host = Host(tmp_path_factory.mktemp("live"))
    yield host
    host.close()


@pytest.mark.parametrize("seconds", [0.1, pytest.param(0.02, marks=pytest.mark.skipif(not LONG, reason="needs a calm machine"))])
@pytest.mark.parametrize("where", WORDS)
def test_the_slow_rank_of_four_is_named(where: str, seconds: float, host: Host, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(where=where, seconds=seconds))

    codes = host.run(script, True, tmp_path, world=4)
    found = find_straggler(evidence(tmp_path, script))

    assert set(codes.values()) == {0}
    assert found is not None and [place.rank for place in found.culprits] == [2]
    assert WORDS[where] in found.why
