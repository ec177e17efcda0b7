"""Checkpoints that all ranks write at once: what does not fit, what was never stepped, and a disk that is full for one rank."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from rankwise.errors import TrainError
from rankwise.train import Checkpoints
from tests.train.farm import Farm

JOBS = "tests.train.jobs_checkpoints"


def test_a_disk_that_is_full_for_one_rank_of_a_sharded_checkpoint_is_told_as_such(farm: Farm, tmp_path: Path) -> None:
    for summary, way_out in farm.run("sharded_on_a_full_disk", 2, jobs=JOBS, folder=tmp_path):
        assert "the disk is full" in summary and way_out == "make room there"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("other model", "(4, 4)"),
        ("other names", "without 0.weight"),
        ("more things", "no optimizer"),
        ("optimizer not plain", "loaded again"),
    ],
)
def test_what_does_not_fit_a_sharded_checkpoint_is_refused_too(farm: Farm, tmp_path: Path, how: str, said: str) -> None:
    farm.run("misused_checkpoints", 2, jobs=JOBS, folder=tmp_path, how="nothing", sharded=True)

    outcomes = farm.ranks("misused_checkpoints", 2, jobs=JOBS, folder=tmp_path, how=how, sharded=True)

    assert outcomes[0].code == "RW710", outcomes[0]
    assert said in outcomes[0].error.replace("model.", "")
    assert outcomes[1].code in ("RW710", "RW711"), outcomes[1]


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_a_sharded_checkpoint_knows_parameters_that_were_never_stepped(farm: Farm, tmp_path: Path, kind: str) -> None:
    undisturbed = farm.run("half_used", 2, jobs=JOBS, folder=tmp_path / "a", kind=kind, save_at=())
    early = farm.run("half_used", 2, jobs=JOBS, folder=tmp_path / "b", kind=kind, save_at=(0, 2), until=3)
    resumed = farm.run("half_used", 2, jobs=JOBS, folder=tmp_path / "b", kind=kind, save_at=())
    farm.run("half_used", 2, jobs=JOBS, folder=tmp_path / "c", kind=kind, save_at=(0,), until=1)
    from_start = farm.run("half_used", 2, jobs=JOBS, folder=tmp_path / "c", kind=kind, save_at=())

    assert [began for began, _ in early + resumed + from_start] == [0, 0, 2, 2, 0, 0]
    assert resumed[0][1] == from_start[0][1] == undisturbed[0][1]


def test_an_optimizer_of_other_parameters_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    frozen = torch.optim.AdamW([model.bias])
    model(torch.ones(1, 2)).sum().backward()
    frozen.step()
    Checkpoints(tmp_path, model=model, optimizer=frozen, sharded=True).save(1)

    with pytest.raises(TrainError, match=r"RW710.* parameter group"):
        Checkpoints(tmp_path, model=model, optimizer=torch.optim.AdamW(model.parameters()), sharded=True).resume()
