"""`gather_predictions`: each row once, in order, for any number of rows and ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rankwise
from rankwise.offline.workspace import PredictError
from tests.ports import free_port

SCRIPT = """
import torch, torch.distributed as dist
from torch.utils.data import DistributedSampler
import rankwise
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
for length in (0, 1, world - 1, world, world + 1, 7, 13):
    data = torch.arange(length * 2.0).reshape(length, 2)
    for shuffle in (False, True):
        if length == 0 and shuffle:
            continue
        seen = list(DistributedSampler(data, shuffle=shuffle, seed=3)) if length else []
        outputs = data[seen] * 3
        got = rankwise.gather_predictions({"y": outputs, "n": data[seen][:, 0].long()}, length, indices=seen)
        assert torch.equal(got["y"], data * 3), (length, shuffle, got)
        assert torch.equal(got["n"], data[:, 0].long())
        if not shuffle and length:
            assert torch.equal(rankwise.gather_predictions(outputs, length), data * 3)
uneven = torch.arange(5.0)[rank::world] if rank else torch.arange(5.0)[0::world]
assert torch.equal(rankwise.gather_predictions(uneven, 5), torch.arange(5.0))
try:
    rankwise.gather_predictions(torch.zeros(1), 9, indices=[rank])
except rankwise.RankwiseError as error:
    assert error.finding.code == "RW841", error.finding
    print("told")
try:
    rankwise.gather_predictions(torch.zeros(1, 2 + rank), world, indices=[rank])
except rankwise.RankwiseError as error:
    print("told")
try:  # what only one of them has wrong, all of them are told
    rankwise.gather_predictions(torch.zeros(2), 2 * world, indices=[rank] if rank else [0, 1])
except rankwise.RankwiseError as error:
    assert "rank 1 has 2 outputs and 1 indices" in str(error), error
    print("told")
for outputs, indices in (
    (torch.zeros(7), None),  # the sampler was forgotten: all ranks have all rows
    ({"a": torch.zeros(1), **({"b": torch.zeros(1)} if rank else {})}, None),
    (torch.zeros(()) if rank else torch.zeros(1), None),
    (torch.zeros(2), [rank, -1]),
):
    try:
        rankwise.gather_predictions(outputs, 7, indices)
    except rankwise.RankwiseError as error:
        assert error.finding.code == "RW841", error.finding
        print("told")
try:
    rankwise.gather_predictions(torch.zeros(3), 3 * world if rank else 2)
except rankwise.RankwiseError as error:
    assert "rank 1 was given a length of" in str(error), error
    print("told")
tensor = torch.zeros(2)
for outputs, indices in (  # of another kind, or unusable, on one rank or on all
    ([tensor, {"a": tensor}], [None, None]),
    ([{"a": tensor, "b": tensor}, {"a": tensor, "b": {"c": tensor}}], [None, None]),
    ([tensor.numpy(), tensor], [None, None]),
    ([{"a": tensor}, {"a": [1.0, 2.0]}], [None, None]),
    ([[1.0, 2.0], [1.0, 2.0]], [None, None]),
    ([tensor.to_sparse(), tensor], [None, None]),
    ([tensor, tensor], [["first", "second"], [1, 3]]),
):
    try:
        rankwise.gather_predictions(outputs[min(rank, 1)], 2 * world, indices[min(rank, 1)])
    except rankwise.RankwiseError as error:
        assert error.finding.code == "RW841" and "rank" in error.finding.summary, error.finding
        print("told")
assert set(rankwise.gather_predictions({1: tensor, "a": tensor}, 2 * world)) == {1, "a"}
for dtype in (torch.int16, torch.uint16, torch.uint64, torch.float8_e5m2, torch.bfloat16, torch.complex64, torch.bool):
    everything = torch.arange(2 * world).to(dtype)
    got = rankwise.gather_predictions(everything[rank::world], 2 * world)
    assert got.dtype == dtype and torch.equal(got.view(torch.uint8), everything.view(torch.uint8)), dtype
kept = torch.nn.Parameter(torch.ones(2, 3).t())[:2]  # not contiguous, and with a gradient
assert rankwise.gather_predictions(kept, 2 * world).shape == (2 * world, 2)
dist.destroy_process_group()
"""


@pytest.mark.live
@pytest.mark.parametrize("world_size", [2, 3, 4] if os.environ.get("RANKWISE_LONG") else [2])
def test_every_row_once_and_in_order(tmp_path: Path, world_size: int) -> None:
    port = str(free_port())
    (tmp_path / "gather.py").write_text(SCRIPT)
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "gather.py")],
            env={**shared, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(world_size)
    ]  # fmt: skip
    outcomes = [rank.communicate(timeout=100) for rank in ranks]

    assert [rank.returncode for rank in ranks] == [0] * world_size, outcomes
    assert all(stdout == "told\n" * 15 for stdout, _ in outcomes)


def test_without_a_group_it_only_orders() -> None:
    got = rankwise.gather_predictions(torch.tensor([30, 10, 20, 10]), 3, indices=[2, 0, 1, 0])

    assert got.tolist() == [10, 20, 30]


def test_what_is_missing_is_named() -> None:
    with pytest.raises(PredictError, match="2 of 4 rows are missing: 1, 3") as caught:
        rankwise.gather_predictions(torch.zeros(2), 4, indices=[0, 2])

    assert caught.value.finding.code == "RW841"
