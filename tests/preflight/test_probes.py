"""What other hosts measure against: it answers only who knows the token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rankwise.preflight.links import knock_at, measure_link
from rankwise.preflight.probes import TOKEN_BYTES, Probes

TOKEN = bytes(range(TOKEN_BYTES))


@pytest.fixture
def probes() -> Iterator[Probes]:
    found = Probes("127.0.0.1", "127.0.0.1")
    found.open()
    found.token = TOKEN
    yield found
    found.close()


def test_probes_answer_only_who_knows_the_token(probes: Probes) -> None:
    offer: dict[str, Any] = {"x": probes.offer()}

    assert knock_at(offer, TOKEN)["x"]["high"] is True
    assert knock_at(offer, bytes(TOKEN_BYTES))["x"]["high"] is False
    facts = measure_link(probes.offer(), bytes(TOKEN_BYTES), 1500)
    assert facts["lost_out"] is None  # no echo for strangers: nobody's packets are reflected
