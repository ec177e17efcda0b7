"""Rows that depend on their neighbours only from some row of the input on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import rankwise
from rankwise.offline.sizing import UNTRIED
from rankwise.offline.workspace import PredictError

SMALL = np.random.default_rng(0).standard_normal((60_000, 3)).astype(np.float32)
LATE = SMALL + np.where(np.arange(len(SMALL)) < 20_000, 0.0, 100.0).astype(np.float32)[:, None]


class Late(nn.Module):
    """Rows see each other where they are large."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 50, x - x.mean(0), x)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dependence_that_shows_late_ends_the_job(tmp_path: Path, workers: int) -> None:
    np.save(tmp_path / "x.npy", LATE)

    with pytest.raises(PredictError, match="--batch 1") as raised:
        rankwise.predict("tests.offline.test_later_rows:Late", tmp_path / "x.npy", tmp_path / "y.npy", workers=workers)

    assert raised.value.finding.code == "RW811"
    assert not (tmp_path / "y.npy").exists()


def test_in_the_first_batch_of_what_can_be_read_only_once(tmp_path: Path) -> None:
    with pytest.raises(PredictError, match="rows 0 to"):
        rankwise.predict(Late, (row for row in LATE[-2 * UNTRIED :]), tmp_path / "y.npy", workers=0)


def test_batches_that_were_asked_for_run_as_asked(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", LATE[-512:])
    rankwise.predict(Late, tmp_path / "x.npy", tmp_path / "y.npy", workers=0, batch=256)

    expected = torch.cat([Late()(torch.from_numpy(batch)) for batch in np.split(LATE[-512:], 2)])
    assert np.array_equal(np.load(tmp_path / "y.npy"), expected.numpy())


@pytest.mark.parametrize("rows", [SMALL, SMALL[:1], SMALL[:257]])
def test_rows_that_stand_alone_are_left_in_peace(tmp_path: Path, rows: np.ndarray) -> None:
    done = rankwise.predict(Late, (row for row in rows), tmp_path / "y.npy", workers=0)

    assert done.rows == len(rows)
    assert np.array_equal(np.load(tmp_path / "y.npy"), rows)
