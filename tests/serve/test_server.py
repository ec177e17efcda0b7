"""Where a server listens, as it is written and read; and how many front ends there are."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("httptools")

from rankwise.errors import UsageError
from rankwise.pool.backend import Machine
from rankwise.serve import server
from rankwise.serve.server import address_text, front_end_count, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:8000", ("127.0.0.1", 8000)), ("[::1]:80", ("::1", 80)), (":0", ("0.0.0.0", 0)), ("node-a:65535", ("node-a", 65535))],
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address
    assert parse_address(address_text(*address)) == address
    assert address_text(*address) == ("0.0.0.0:0" if text == ":0" else text)


@pytest.mark.parametrize("text", ["", "8000", "node-a:", "node-a:http", "node-a:65536", "node-a:-1", "node-a:²", "http://node-a:1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not an address to listen on"):
        parse_address(text)


def test_front_ends_are_for_machines_with_cores_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(4, 1 << 30, (), "4 cores")
    monkeypatch.setattr(server, "this_machine", lambda: machine)
    assert front_end_count("auto") == 0
    monkeypatch.setattr(server, "this_machine", lambda: replace(machine, cores=8))
    assert front_end_count("auto") == 2
    assert front_end_count(0) == 0 and front_end_count(64) == 64


@pytest.mark.parametrize("said", [-1, 65, "two", True, 1.0, None])
def test_any_other_number_of_front_ends_is_refused(said: int | str) -> None:
    with pytest.raises(UsageError, match="from 0 to 64"):
        front_end_count(said)
