"""Folders of torch.distributed.checkpoint over which another save was begun."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from rankwise.weights.loading import load_weights
from rankwise.weights.tensor_records import CheckpointError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As two ranks would leave it: two files with weights."""
    writer = dcp.FileSystemWriter(tmp_path / "saved", single_file_per_rank=False)
    dcp.save(nn.Linear(3, 2).state_dict(), storage_writer=writer, no_dist=True)
    assert len(list((tmp_path / "saved").glob("*.distcp"))) == 2
    return tmp_path / "saved"


@pytest.mark.parametrize(
    ("times", "is_told"),
    [
        ({}, False),
        ({"__0_0.distcp": 3600.0}, True),
        ({"__0_0.distcp": 3600.0, "__0_1.distcp": 3600.0}, False),  # all of the new one, or a copy that began with .metadata
        ({"__0_0.distcp": 5.0}, False),  # a copy
        ({".metadata": 3600.0}, False),
    ],
)
def test_files_of_two_saves_are_told(folder: Path, times: dict[str, float], is_told: bool, caplog: pytest.LogCaptureFixture) -> None:
    for path in folder.iterdir():
        at = 1.7e9 + times.get(path.name, 0.0)
        os.utime(path, (at, at))
    with caplog.at_level(logging.WARNING, "rankwise.weights"):
        load_weights(nn.Linear(3, 2), folder)

    assert ("was a save over an older one cut off?" in caplog.text) == is_told


def test_a_file_that_is_longer_than_was_saved_is_of_another_save(folder: Path) -> None:
    with (folder / "__0_0.distcp").open("ab") as file:
        torch.save(torch.ones(3), file)

    with pytest.raises(CheckpointError, match=r"longer than \.metadata says"):
        load_weights(nn.Linear(3, 2), folder)


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as raised:
        load_weights(nn.Linear(3, 2), path)
    assert raised.value.finding.code == "RW733"
    return str(raised.value)


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
def test_a_file_of_the_folder_is_neither_damaged_nor_dangerous(folder: Path, name: str) -> None:
    assert f"give their folder, {folder}" in refused(folder / name)


def test_a_folder_without_its_metadata_is_a_save_that_did_not_end_or_half_a_copy(folder: Path) -> None:
    (folder / ".metadata").unlink()
    torch.save({"step": 3}, folder / "meta.pt")  # as Lightning leaves it there

    assert "cp folder/*" in refused(folder)


def test_a_folder_that_the_ranks_wrote_each_for_itself_is_told_as_that(folder: Path) -> None:
    (folder / ".metadata").rename(folder / "__0.metadata")

    assert "use_collectives=False" in refused(folder)
