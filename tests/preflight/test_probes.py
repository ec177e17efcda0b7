"""What other hosts measure against: it answers only who knows the token."""

from __future__ import annotations

from typing import Any

from rankwise.preflight.link_speed import measure_link, probe_ports
from rankwise.preflight.probes import TOKEN_BYTES, Probes
from tests.preflight.conftest import TOKEN


def test_probes_answer_only_who_knows_the_token(probes: Probes) -> None:
    offer: dict[str, Any] = {"x": probes.offer()}

    assert probe_ports(offer, TOKEN)["x"]["high"] is True
    assert probe_ports(offer, bytes(TOKEN_BYTES))["x"]["high"] is False
    facts = measure_link(probes.offer(), bytes(TOKEN_BYTES), 1500)
    assert facts["lost_out"] is None  # no echo for strangers: nobody's packets are reflected
