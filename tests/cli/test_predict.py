"""`rankwise predict` as from a shell: what it says, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rankwise.cli.main import main
from rankwise.cli.predict import progress_text
from tests.families import mostly_live
from tests.offline.inputs import write

BUILD = ["--build", "tests.offline.nets:build", "--workers", "0"]


def test_the_summary_in_words_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = write(tmp_path, "csv", 40)
    chosen = ["--columns", "a,b,c,d,e,f"]
    keep = ["--keep", "id"]

    assert main(["predict", *BUILD, "--input", str(path), "--output", str(tmp_path / "a.csv"), *chosen, *keep, "--batch", "16"]) == 0
    words = capsys.readouterr().out
    assert main(["predict", *BUILD, "--input", str(path), "--output", str(tmp_path / "b.npy"), *chosen, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)

    assert "a.csv: 40 rows, in batches of 16" in words
    assert "no row was run now" not in words
    assert (facts["rows"], facts["failed"]) == (40, 0)
    assert facts["batch"] in (1, 4, 16) and "the input has 40 rows" in facts["batch_why"]
    assert (tmp_path / "a.csv").read_text().splitlines()[0] == "row,id,output_0,output_1,output_2"
    assert np.load(tmp_path / "b.npy").shape == (40, 3)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--output", "out.npy"], "RW001"),
        (["--input", "gone.npy", "--output", "out.npy"], "RW002"),
        (["--input", "x.npy", "--output", "out.npy", "--batch", "none"], "RW001"),
        (["--input", "x.npy", "--output", "out.npy", "--columns", ",,"], "RW001"),
        (["--input", "x.npy", "--output", "out.npy", "--workers", "-1"], "RW001"),
        (["--input", "x.npy", "--output", "out.npy", "--weights", "gone.pt"], "RW001"),
        (["--input", "x.npy", "--output", "out.npy", "--weights", "x.npy"], "RW733"),
        (["--input", "x.npy", "--output", "out.npy", "--build", "nowhere:build"], "RW001"),
    ],
)
def test_wrong_usage_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], code: str
) -> None:
    write(tmp_path, "npy", 5)
    monkeypatch.chdir(tmp_path)

    assert main(["predict", *BUILD, *words]) == 2

    captured = capsys.readouterr()
    assert captured.err.startswith(code), captured.err
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ((1024, 0, 10_000, 512.0), "1,024 of 10,000 rows · 512 rows/s · 17.5 s left"),
        ((1024, 3, None, 512.0), "1,024 rows · 512 rows/s · 3 failed"),
        ((0, 0, 10, 0.0), "0 of 10 rows"),
    ],
)
def test_progress_says_rows_speed_and_time_left(facts: tuple[int, int, int | None, float], text: str) -> None:
    assert progress_text(*facts) == text


@pytest.mark.parametrize("workers", mostly_live(["1", "0"]))
def test_what_the_model_prints_is_not_in_the_json(tmp_path: Path, workers: str) -> None:
    (tmp_path / "chatty.py").write_text(
        "import torch\nprint('imported')\ndef build():\n    print('built')\n    return torch.nn.Identity()\n"
    )
    path, _ = write(tmp_path, "npy", 10)
    given = ["predict", "--build", "chatty:build", "--input", str(path), "--output", "out.npy", "--workers", workers, "--json"]
    done = subprocess.run([sys.executable, "-m", "rankwise", *given], cwd=tmp_path, capture_output=True, text=True, timeout=100)

    assert json.loads(done.stdout)["rows"] == 10
    assert "built" in done.stderr


def test_the_same_command_again_says_that_no_row_was_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever has edited the model in between would take the old output for a new one."""
    path, _ = write(tmp_path, "npy", 20)
    words = ["predict", *BUILD, "--input", str(path), "--output", str(tmp_path / "out.npy"), "--batch", "16"]

    assert (main(words), main(words)) == (0, 0)

    first, again = capsys.readouterr().out.split("out.npy: ")[1:]
    assert "no row was run now" in again and "no row was run now" not in first
