"""Which interfaces the backends' variables name."""

from __future__ import annotations

import pytest

from rankwise.meet.network import interfaces, is_own, missing_interface, resolve, source_address

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
