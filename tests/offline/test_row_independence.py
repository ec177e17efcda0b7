"""Rows that depend on their neighbours in a batch are found before the batch size is; rows that only round are not."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rankwise
from rankwise.offline.executing import Executor, Recipe
from rankwise.offline.row_batches import Selection
from rankwise.offline.row_independence import VARIES, find_dependence
from rankwise.offline.source import open_source

ROWS = np.random.default_rng(0).standard_normal((200, 6)).astype(np.float32)


class Of(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def found(function: Callable[[torch.Tensor], Any], tmp_path: Path, rows: Any = ROWS, size: int = 64) -> str:
    np.save(tmp_path / "x.npy", rows)
    executor = Executor(Recipe(lambda: Of(function), workers=0))
    return find_dependence(open_source(tmp_path / "x.npy", Selection()), executor, size)


def padded_to_the_largest(x: torch.Tensor) -> list[str]:
    return ["a" * int(x.abs().max() * 100)] * len(x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x / x.sum(0, keepdim=True),
        lambda x: x.softmax(0),
        lambda x: x.cumsum(0),
        lambda x: {"label": (x - x.mean(0)).sum(1) > 0, "copy": x},
        lambda x: [{"score": float(value)} for value in x.softmax(0)[:, 0]],
        padded_to_the_largest,
    ],
)
def test_rows_that_depend_on_each_other(function: Callable[[torch.Tensor], Any], tmp_path: Path) -> None:
    assert "a row alone differs" in found(function, tmp_path)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2,
        lambda x: (x.bfloat16() @ torch.eye(6, dtype=torch.bfloat16)).softmax(1),
        lambda x: x.argmax(1),
        lambda x: x / 0,
        lambda x: [{"score": float(value), "name": "a"} for value in x[:, 0]],
        lambda x: x.squeeze(),  # which fails for a row alone
        lambda x: x * (1 if len(x) == 1 else 1.001),  # rounding
    ],
)
def test_rows_that_do_not(function: Callable[[torch.Tensor], Any], tmp_path: Path) -> None:
    assert found(function, tmp_path) == ""


def test_one_row_near_a_tie_proves_nothing(tmp_path: Path) -> None:
    rows = np.where(np.arange(200)[:, None] == 0, np.float32(1e-9), ROWS)

    assert found(lambda x: (x[:, 0] + (1 - len(x)) * 1e-8) > 0, tmp_path, rows) == ""


def test_a_model_that_never_answers_the_same_way_is_told_apart(tmp_path: Path) -> None:
    count = itertools.count(1)

    assert found(lambda x: x * next(count), tmp_path) == VARIES
    assert found(torch.rand_like, tmp_path) == VARIES


@pytest.mark.parametrize("size", [1, 64])
def test_too_few_rows_show_nothing(tmp_path: Path, size: int) -> None:
    assert found(lambda x: x.softmax(0), tmp_path, ROWS[:1] if size > 1 else ROWS, size) == ""


def test_such_a_job_runs_row_by_row_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.save(tmp_path / "x.npy", ROWS)

    with caplog.at_level(logging.WARNING):
        done = rankwise.predict(lambda: Of(lambda x: x.softmax(0)), tmp_path / "x.npy", tmp_path / "y.npy", workers=0)

    assert np.array_equal(np.load(tmp_path / "y.npy"), np.ones_like(ROWS))
    assert done.batch == 1 and "depend on each other" in done.batch_why
    assert "RW811" in caplog.text
