"""The example trains for real, in fewer than sixty lines."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.conftest import Ran

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_ddp.py"


def test_the_example_reaches_the_accuracy_it_states(run_rankwise: Callable[..., Ran], tmp_path: Path) -> None:
    ran = run_rankwise("run", "--out", tmp_path / "run", "--standalone", "--nproc-per-node", "2", EXAMPLE, tmp_path / "digits")

    assert ran.code == 0, ran.text
    stated = re.search(r"more than (\d+) %", EXAMPLE.read_text())
    reached = re.search(r"([\d.]+)% of 360 digits", ran.stdout)
    assert stated and reached, ran.text
    assert float(reached[1]) > float(stated[1])
    assert (tmp_path / "digits" / "last.pt").is_file()


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60
