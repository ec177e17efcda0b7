"""What other hosts measure against, open for one test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rankwise.preflight.probes import TOKEN_BYTES, Probes

TOKEN = bytes(range(TOKEN_BYTES))


@pytest.fixture
def probes() -> Iterator[Probes]:
    found = Probes("127.0.0.1", "127.0.0.1")
    found.open()
    found.token = TOKEN
    yield found
    found.close()
