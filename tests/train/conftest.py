"""The farm of ranks that a worker's training tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.train.farm import Farm


@pytest.fixture(scope="session")
def farm() -> Iterator[Farm]:
    farm = Farm()
    yield farm
    farm.close()
