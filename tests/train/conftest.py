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


@pytest.fixture(scope="session", autouse=True)
def temporary_folder_that_outlives_a_test(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Made before the first test has its own folder for temporary files, or it would be made inside of that, and go with it."""
    tmp_path_factory.getbasetemp()
