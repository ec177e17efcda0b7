"""The example trains for real, in fewer than sixty lines."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ran

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "train_ddp.py"


@pytest.mark.live
def test_the_example_reaches_the_accuracy_it_states(run_rankwise: Callable[..., Ran], tmp_path: Path) -> None:
    ran = run_rankwise("run", "--out", tmp_path / "run", "--standalone", "--nproc-per-node", "2", EXAMPLE, tmp_path / "digits")

    assert ran.code == 0, ran.text
    stated = re.search(r"more than (\d+) %", EXAMPLE.read_text())
    reached = re.search(r"([\d.]+)% of 360 digits", ran.stdout)
    assert stated and reached, ran.text
    assert float(reached[1]) > float(stated[1])
    assert (tmp_path / "digits" / "last.pt").is_file()


def test_the_page_that_shows_the_diff_is_up_to_date() -> None:
    peers = ROOT / "benchmarks" / "peers"
    before, after = ((peers / name).read_text().splitlines(keepends=True) for name in ("by_hand.py", "with_rankwise.py"))

    diff = "".join(difflib.unified_diff(before, after, "by_hand.py", "with_rankwise.py", n=2))

    assert f"```diff\n{diff}```" in (ROOT / "docs" / "train-from-ddp.md").read_text()


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60
