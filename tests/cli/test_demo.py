"""The tour is a newcomer's first contact: it runs for real, and says what it says."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwise.cli import demo

ROOT = Path(__file__).parents[2]
TOUR = Path(demo.__file__).with_name("tour")


@pytest.mark.live
@pytest.mark.timeout(400)
def test_the_tour_trains_breaks_and_explains(run_rankwise: Callable[..., Any], tmp_path: Path) -> None:
    ran = run_rankwise("demo", cwd=tmp_path, timeout_s=300)

    assert ran.code == 0, ran.text
    first, *_, last = ran.stdout.split("train_ddp.py")
    losses = [float(loss) for loss in re.findall(r"epoch \d: loss ([\d.]+)", first)]
    assert len(losses) == 5 and losses[-1] < losses[0] / 3
    assert "Exit code 70 after" in ran.stdout
    shares = [float(share) for share in re.findall(r"([\d.]+)% of 360 digits", last)]
    assert len(shares) == 3 and min(shares) > 95 and len(set(shares)) == 1  # trained, then the same from the pool, then from the server
    assert "$ rankwise explain RW201" in ran.stdout

    [folder] = (tmp_path / "rankwise-runs").iterdir()
    assert list(tmp_path.iterdir()) == [folder.parent], "only the run folder stays"
    assert f"rankwise-runs/{folder.name}/verdict.json" in ran.stdout
    assert f"rankwise-runs/{folder.name}/report.html" in ran.stdout and (folder / "report.html").is_file()
    verdict = json.loads((folder / "verdict.json").read_text())
    finding = verdict["findings"][0]
    assert (verdict["outcome"], verdict["exit_code"], finding["code"], finding["certain"]) == ("hung", 70, "RW201", True)
    culprit = {key: value for key, value in finding["culprits"][0].items() if key in ("rank", "file", "line")}
    assert [culprit] == [{"rank": 1, "file": "train_broken.py", "line": line_of("train_broken.py", "continue")}]
    assert finding["summary"].split(";")[0] in " ".join(ran.stderr.split())


def test_a_tour_that_goes_wrong_ends_with_one_and_says_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(demo.run, "main", lambda argv: 3)

    assert demo.main([]) == 1
    assert "did not go as planned: train.py should have ended with exit code 0, not 3." in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_the_scripts_of_the_tour_are_the_examples() -> None:
    shipped = {path.stem: path.read_text() for path in TOUR.iterdir()}

    names = ("train.py", "train_broken.py", "train_ddp.py", "predict_digits.py", "ask_digits.py")
    assert shipped == {name: (ROOT / "examples" / name).read_text() for name in names}


def test_the_broken_example_is_the_healthy_one_and_three_lines_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples")

    assert len(demo._added_lines("train.py", "train_broken.py")) == 3
    bodies = [ast.parse(Path(name).read_text()).body[1:] for name in ("train.py", "train_broken.py")]
    assert len(bodies[0]) == len(bodies[1])


@pytest.mark.live
def test_the_spawn_example_runs_under_the_watch(run_rankwise: Callable[..., Any], tmp_path: Path) -> None:
    ran = run_rankwise("run", "--out", tmp_path / "out", "--", sys.executable, ROOT / "examples" / "spawn.py", timeout_s=150)

    assert (ran.code, ran.verdict["outcome"], ran.codes) == (0, "completed", []), ran.text
    assert "[rank 0] epoch 4: loss" in ran.stdout


def line_of(script: str, words: str) -> int:
    lines = (ROOT / "examples" / script).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if words in line)
