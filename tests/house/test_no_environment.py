"""Nothing in the repository mentions the machine or the tools it was written with."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.house.imports import ROOT

# Written in pieces, so that this file does not find itself.
WORDS = ["/" + "work/", "/" + "root/", "shared/" + "gauntlet", "farm-" + "studio"]
PATTERN = re.compile("|".join(WORDS), re.IGNORECASE)
TEXT = {"", ".py", ".md", ".toml", ".txt", ".cfg", ".ini", ".json", ".yml", ".yaml", ".sh", ".html", ".js", ".css", ".expected"}


def repository_files() -> list[Path]:
    """Tracked files and those that would be; an unpacked source archive has no git and is read whole."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        listed = None
    if listed is not None and listed.returncode == 0:
        paths = [ROOT / line for line in listed.stdout.splitlines()]
    else:
        paths = [path for path in ROOT.rglob("*") if not any(part in {".venv", ".git"} or part.endswith("_cache") for part in path.parts)]
    return sorted(path for path in paths if path.is_file() and path.suffix in TEXT)


def test_nothing_mentions_where_it_was_written() -> None:
    found = []
    for path in repository_files():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if PATTERN.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")

    assert not found, "\n".join(found)


@pytest.mark.parametrize("line", ["see " + "/" + "work/x", "in shared/" + "gauntlet"])
def test_a_mention_is_found(line: str) -> None:
    assert PATTERN.search(line)
