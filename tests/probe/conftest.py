"""The folder probes write to."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def live(own_temporary_folder: Path) -> Path:
    """As `rankwise run` makes it: private, and with a path short enough for unix sockets."""
    folder = own_temporary_folder / "live"
    folder.mkdir(mode=0o700)
    return folder
