"""What broken paths between hosts say: which are used at all, who is to blame, and who has fallen silent."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise.findings import Finding
from rankwise.stages import BACKEND
from rankwise.train.mesh import Path, find_broken_paths, find_silent, first_of_each_host, peers_of
from rankwise.train.rank_info import RankInfo

SWALLOWED = "small packets arrive, large ones vanish"


def info(rank: int, host: str, **facts: Any) -> RankInfo:
    return RankInfo(f"id-{rank}", rank, 6, rank % 2, host, 100 + rank, **{"backend": "nccl", "address": f"10.0.0.{rank + 1}", **facts})


SIX = [info(rank, f"node-{'aabbcc'[rank]}") for rank in range(6)]


def paths(*broken: tuple[int, int], outcome: str = "no answer") -> list[Path]:
    """All paths between the first ranks of the hosts; these did not come about."""
    both = [(source, target) for source in (0, 2, 4) for target in (0, 2, 4) if source != target]
    return [Path(source, target, f"10.0.0.{target + 1}:9", outcome if (source, target) in broken else "") for source, target in both]


def found(paths: list[Path], infos: list[RankInfo] = SIX) -> Finding:
    finding = find_broken_paths(paths, infos, BACKEND)
    assert finding is not None and finding.stage == "backend"
    return finding


def test_the_first_rank_of_each_host_whatever_the_order() -> None:
    assert [first.rank for first in first_of_each_host(SIX[::-1])] == [0, 2, 4]


def test_each_tries_the_next_ones_in_the_ring() -> None:
    many = [info(rank, f"node-{rank}") for rank in range(20)]

    assert [peer.rank for peer in peers_of(SIX[2], [SIX[0], SIX[2], SIX[4]])] == [4, 0]
    assert [peer.rank for peer in peers_of(many[18], many)] == [19, *range(15)]


def test_paths_that_all_came_about_are_no_finding() -> None:
    assert find_broken_paths(paths(), SIX, BACKEND) is None


def test_the_host_that_all_broken_paths_lead_to_is_named() -> None:
    finding = found(paths((0, 4), (2, 4)))

    assert finding.code == "RW114" and finding.certain
    assert {place.host for place in finding.culprits} == {"node-c"}
    assert finding.summary.endswith("rank 0 on node-a cannot connect to rank 4 on node-c at 10.0.0.5:9: no answer, and 1 more such paths")
    assert "firewall on or before node-c" in finding.why


def test_a_host_that_reaches_nobody_and_is_reached_by_nobody_is_named() -> None:
    assert {place.host for place in found(paths((4, 0), (4, 2), (0, 4), (2, 4))).culprits} == {"node-c"}


def test_one_broken_path_is_not_called_more() -> None:
    finding = found(paths((0, 2), outcome="refused"))

    assert finding.summary.endswith("refused")
    assert "could not be at the address it offers" in finding.why


def test_of_two_gloo_ranks_only_the_higher_address_dials() -> None:
    gloo = [info(rank, one.host, backend="gloo") for rank, one in enumerate(SIX)]

    assert find_broken_paths(paths((0, 4)), gloo, BACKEND) is None
    assert found(paths((4, 0)), gloo).code == "RW114"


def test_large_packets_that_vanish_are_another_cause_whoever_dials() -> None:
    gloo = [info(rank, one.host, backend="gloo") for rank, one in enumerate(SIX)]

    finding = found(paths((0, 4), outcome=SWALLOWED), gloo)

    assert finding.code == "RW608" and not finding.certain
    assert " reaches rank 4 " in finding.summary and "MTU" in finding.why


@pytest.mark.parametrize(("interface", "steps"), [("eth1", ("on node-c: export GLOO_SOCKET_IFNAME=eth1",)), ("", ())])
def test_an_address_of_another_interface_than_the_one_to_the_store_is_told(interface: str, steps: tuple[str, ...]) -> None:
    infos = [*SIX[:4], info(4, "node-c", route="192.168.0.5", interface="docker0", route_interface=interface), SIX[5]]

    finding = found(paths((0, 4)), infos)

    assert "offers 10.0.0.5 (interface docker0)" in finding.why and "from 192.168.0.5" in finding.why
    assert [step for step in finding.next if "export" in step] == list(steps)


def test_an_address_that_is_the_one_to_the_store_is_no_reason() -> None:
    infos = [*SIX[:4], info(4, "node-c", route="10.0.0.5", route_interface="eth1"), SIX[5]]

    assert "offers" not in found(paths((0, 4)), infos).why


def test_who_fell_silent_is_named_and_nobody_else() -> None:
    finding = find_silent([SIX[4], SIX[2]], BACKEND)

    assert finding is not None and finding.code == "RW126"
    assert [place.rank for place in finding.culprits] == [4, 2]
    assert find_silent([], BACKEND) is None
