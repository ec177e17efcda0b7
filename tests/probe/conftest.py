"""The folder probes write to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def live(leaves_nothing_behind: str) -> Path:
    """As `rankwise run` makes it: private, and with a path short enough for unix sockets."""
    folder = Path(os.environ["TMPDIR"]) / "live"
    folder.mkdir(mode=0o700)
    return folder
