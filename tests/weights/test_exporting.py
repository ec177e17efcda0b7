"""Writing programs."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch
from torch import nn

from rankwise.weights.exporting import export_program
from rankwise.weights.tensor_records import CheckpointError


def test_a_program_that_has_no_room_is_a_finding_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
    try:
        with pytest.raises(CheckpointError) as caught:
            export_program(nn.Linear(600, 600), (torch.ones(2, 600),), tmp_path / "net.pt2", dynamic_batch=False, tolerance=None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)

    assert caught.value.finding.code == "RW741"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_a_finding(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        export_program(nn.Linear(2, 2), (torch.ones(2, 2),), tmp_path / "gone" / "net.pt2", dynamic_batch=False, tolerance=None)

    assert caught.value.finding.code == "RW741"
