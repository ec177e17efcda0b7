"""`--fit` on the CPU: the largest batch is found under a memory limit, by trying; what goes wrong in the step is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

STEPS = """
import os, signal
import torch

def megabytes(batch_size):  # 16 MiB per sample, written to, so that it is really there
    torch.ones(batch_size << 22)

def wrong(batch_size):
    raise ValueError("no such column")

def killed(batch_size):
    print("{" * 100)  # must not come between the answers
    if batch_size >= 8:
        os.kill(os.getpid(), signal.SIGKILL)

def slow(batch_size):
    import time
    time.sleep(0.2 * batch_size)
"""


def fit(folder: Path, step: str, *more: str, limit_kib: int = 0) -> tuple[int, dict[str, Any]]:
    (folder / "steps.py").write_text(STEPS)
    words = [sys.executable, "-m", "rankwise", "check", "--json", "--only", "fit", "--fit", f"steps:{step}", *more]
    command = ["bash", "-c", f'ulimit -d {limit_kib}; exec "$@"', "bash", *words] if limit_kib else words
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def text_of(report: dict[str, Any]) -> str:
    return str(next(iter(report["results"][0]["values"].values())))


def too_much_from(failing: int, sizes: list[int]) -> Any:
    def step(size: int) -> None:
        sizes.append(size)
        if size >= failing:
            raise MemoryError

    return step


@pytest.mark.parametrize("failing", [1, 2, 3, 38, 64, 1000])
def test_sizes_are_doubled_and_then_the_gap_is_halved(monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    torch_fit = pytest.importorskip("rankwise.preflight.torch_fit")
    sizes: list[int] = []
    monkeypatch.setattr(torch_fit, "_load", lambda target: too_much_from(failing, sizes))
    monkeypatch.setattr(torch_fit, "_limit_memory", lambda memory: None)  # that would be this process's
    monkeypatch.setattr(torch_fit, "_forget_peak", lambda device: None)
    monkeypatch.setattr(torch_fit.gc, "collect", lambda: 0)  # of all that the tests have made
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    *_, last = torch_fit.find_fit("steps:step", 60.0, 1 << 40)

    assert last == {"largest": failing - 1, "first_failing": failing, "why": ""}
    assert len(set(sizes)) <= 2 * failing.bit_length() + 1  # and not one by one


@pytest.mark.live
def test_the_largest_batch_under_a_limit_is_found(tmp_path: Path) -> None:
    code, report = fit(tmp_path, "megabytes", limit_kib=1 << 20)
    text = text_of(report)

    assert code == 0, report["findings"]
    size = int(text.split()[0])
    assert f"{size} on cpu, first failing {size + 1}" in text
    assert 400 < 16 * size < 1024  # a GiB, less what torch needs and what is kept free


def test_an_error_that_is_not_about_memory_is_told(tmp_path: Path) -> None:
    code, report = fit(tmp_path, "wrong")

    assert (code, report["findings"][0]["code"]) == (1, "RW640")
    assert report["findings"][0]["why"] == "at size 1: ValueError: no such column"


def test_a_step_that_gets_killed_ends_the_search_and_nothing_else(tmp_path: Path) -> None:
    code, report = fit(tmp_path, "killed")

    assert code == 0
    assert "4 on cpu, first failing 8" in text_of(report)


@pytest.mark.live
def test_a_slow_step_ends_with_the_time_limit(tmp_path: Path) -> None:
    code, report = fit(tmp_path, "slow", "--time-limit", "20")

    assert code == 0
    assert text_of(report).startswith("at least ") and "time limit" in text_of(report)
    assert report["seconds"] < 40
