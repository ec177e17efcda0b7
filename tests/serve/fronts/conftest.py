"""The same server as in the folder above, behind two front-end processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rankwise.serve.serving import Serving
from tests.serve.conftest import served


@pytest.fixture(scope="module")
def serving(none_kept: None) -> Iterator[Serving]:
    with behind_front_ends() as running:
        yield running


@contextmanager
def behind_front_ends(**options: Any) -> Iterator[Serving]:
    with served(front_ends=2, **options) as running:
        processes, end = running.server._front_ends, time.monotonic() + 60
        while processes is None or len(processes._all) < 2 or not all(process.is_ready for process in processes._all):
            assert time.monotonic() < end
            time.sleep(0.02)
        yield running


@pytest.fixture(scope="package", autouse=True)
def none_kept() -> Iterator[None]:
    """The server reads no connection itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rankwise.serve.server._KEPT", 0)
        yield
