"""Type checkers see what the shop window sells: wrong arguments of a user's file are errors to mypy and pyright."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

GOOD = """
import rankwise

pool = rankwise.Pool({"mlp": rankwise.Model("my_models:build_mlp")}, workers=2)
future = pool.submit("mlp", [1.0])
pool.close()
"""
BAD = {
    "a misspelt argument": "import rankwise\n\nrankwise.Pool({}, wrkers=2)\n",
    "an unknown name": "import rankwise\n\nrankwise.Pol\n",
    "a wrong type": 'import rankwise\n\nrankwise.Model(3, max_batch="many")\n',
}


def checkers() -> list[list[str]]:
    mypy = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"]
    return [mypy, ["pyright", "--pythonpath", sys.executable]]


@pytest.mark.live  # half a minute: a checker reads all of rankwise
@pytest.mark.parametrize("checker", checkers(), ids=lambda command: "mypy" if "mypy" in command else command[0])
def test_a_checker_takes_what_is_right_and_refuses_what_is_wrong(checker: list[str], tmp_path: Path) -> None:
    if shutil.which(checker[0]) is None:
        pytest.skip(f"{checker[0]} is not installed")
    files = {"good": GOOD, **{name.replace(" ", "_"): text for name, text in BAD.items()}}
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)

    ran = subprocess.run([*checker, *[f"{name}.py" for name in files]], cwd=tmp_path, capture_output=True, text=True, timeout=300)

    faults = [line for line in ran.stdout.splitlines() if "error" in line]
    refused = {name for name in files if any(f"{name}.py:" in line for line in faults)}
    assert refused == set(files) - {"good"}, ran.stdout + ran.stderr
