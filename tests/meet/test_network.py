"""Which interfaces the backends' variables name."""

from __future__ import annotations

import pytest

from rankwise.meet.network import Interface, interfaces, is_own, missing_interface, own_addresses, resolve, source_address

THERE = ("lo", "eth0", "eth1")


@pytest.mark.parametrize(
    ("variable", "value", "missing"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0,eth1", ""),
        ("GLOO_SOCKET_IFNAME", "eth0,ib0", "ib0"),
        ("GLOO_SOCKET_IFNAME", "eth", "eth"),
        ("NCCL_SOCKET_IFNAME", "eth", ""),
        ("NCCL_SOCKET_IFNAME", "=eth", "=eth"),
        ("NCCL_SOCKET_IFNAME", "^lo", ""),
        ("NCCL_SOCKET_IFNAME", "^lo,eth", "^lo,eth"),
        ("NCCL_SOCKET_IFNAME", "", ""),
    ],
)
def test_gloo_takes_whole_names_and_nccl_prefixes(variable: str, value: str, missing: str) -> None:
    assert missing_interface(variable, value, THERE) == missing


def test_loopback_is_this_host() -> None:
    assert resolve("127.0.0.1").addresses == ("127.0.0.1",)
    assert source_address("127.0.0.1") == "127.0.0.1"
    assert is_own("127.0.0.1", interfaces())


KNOWN = [
    Interface("lo", ("127.0.0.1", "::1"), True, 65536),
    Interface("eth0", ("10.0.0.2", "fe80::1"), True, 1500),
    Interface("eth1", ("10.1.0.2",), False, 1500),
]


@pytest.mark.parametrize(
    ("name", "addresses", "own"),
    [
        ("node-a", ("10.0.0.2",), ["10.0.0.2"]),
        ("node-a", ("127.0.1.1", "10.0.0.2"), ["10.0.0.2"]),
        ("node-a", ("127.0.1.1",), ["10.0.0.2", "127.0.1.1"]),  # of what is up, nothing that holds on one link only
        ("node-b", ("10.0.0.3",), []),
        ("localhost", ("127.0.0.1",), ["127.0.0.1"]),
        ("127.0.0.1", ("127.0.0.1",), ["127.0.0.1"]),
        ("nowhere", (), []),
    ],
)
def test_a_name_means_the_addresses_at_which_others_find_this_host(name: str, addresses: tuple[str, ...], own: list[str]) -> None:
    assert own_addresses(name, addresses, KNOWN) == own
