"""What the infos on the table say: tables of infos, and the finding they must or must not lead to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rankwise.findings import Finding
from rankwise.train.rank_info import RankInfo
from rankwise.train.rollcall import (
    find_contradiction,
    find_device_problem,
    find_differences,
    find_missing,
    find_unreachable_address,
    registered_text,
    roll_text,
)


def info(rank: int, host: str = "node-a", **facts: Any) -> RankInfo:
    facts = {"world_size": 4, "local_rank": rank % 2, "backend": "gloo", **facts}
    return RankInfo(id=f"id-{rank}-{host}", rank=rank, host=host, pid=100 + rank, **facts)


FOUR = [info(0), info(1), info(2, "node-b"), info(3, "node-b")]


def changed(rank: int, **facts: Any) -> list[RankInfo]:
    return [replace(one, **facts) if one.rank == rank else one for one in FOUR]


def ranks(finding: Finding | None) -> list[int | None]:
    assert finding is not None
    return [place.rank for place in finding.culprits]


def test_cards_that_agree_are_no_finding() -> None:
    assert find_contradiction(FOUR) is None
    assert find_device_problem(FOUR) is None
    assert find_differences(FOUR) == []


@pytest.mark.parametrize(
    ("infos", "code", "culprits"),
    [
        ([*FOUR[:3], info(2, "node-c")], "RW102", [2, 2]),
        (changed(3, world_size=5), "RW112", [3]),
        ([*FOUR[:3], info(4, "node-b", world_size=4)], "RW112", [4]),
        (changed(1, backend="nccl"), "RW113", [1]),
        (changed(2, problem=Finding("RW108", "interface-missing", "error", True, "no eth9").to_dict()), "RW108", []),
    ],
)
def test_what_no_late_rank_could_put_right_is_told_at_once(infos: list[RankInfo], code: str, culprits: list[int]) -> None:
    finding = find_contradiction(infos)

    assert finding is not None and finding.code == code
    assert ranks(finding) == culprits


def test_a_missing_rank_is_named_with_the_host_its_neighbours_are_on() -> None:
    finding = find_missing([FOUR[0], FOUR[1], FOUR[3]], 4, 30.0, "node-a:29500")

    assert (finding.code, finding.culprits[0].rank, finding.culprits[0].host) == ("RW101", 2, "node-b")
    assert "rank 2 on node-b never registered" in finding.summary
    assert "ranks 0, 1 on node-a" in finding.why


def test_a_host_that_is_not_known_is_not_guessed() -> None:
    finding = find_missing(FOUR[:2], 4, 30.0, "node-a:29500")

    assert [(place.rank, place.host) for place in finding.culprits] == [(2, None), (3, None)]


def test_the_waiting_line_counts_and_names() -> None:
    assert registered_text([FOUR[0], FOUR[1], FOUR[3]], 4, 14.2) == "3 of 4 ranks registered, waiting for rank 2 on node-b, 14 s"
    assert roll_text(FOUR) == "ranks 0, 1 on node-a and ranks 2, 3 on node-b"


def test_two_ranks_on_one_gpu_are_named_unless_they_pretend_to_be_on_two_hosts() -> None:
    sharing = [info(0, gpu="GPU-1", device="cuda:0"), info(1, gpu="GPU-1", device="cuda:0"), info(2, gpu="GPU-2")]
    finding = find_device_problem(sharing)

    assert finding is not None and (finding.code, ranks(finding), finding.stage) == ("RW121", [0, 1], "devices")
    assert find_device_problem([replace(one, settings={"NCCL_HOSTID": one.id}) for one in sharing]) is None


@pytest.mark.parametrize(
    ("versions", "severity"),
    [({"torch": "2.11.0"}, "error"), ({"torch": "2.13.1"}, "warning"), ({"python": "3.12.1"}, "warning")],
)
def test_different_versions_stop_the_job_only_where_they_must(versions: dict[str, str], severity: str) -> None:
    usual = {"torch": "2.13.0", "python": "3.11.2"}
    (finding,) = find_differences([replace(one, versions=usual | (versions if one.rank == 3 else {})) for one in FOUR])

    assert (finding.code, finding.severity, ranks(finding)) == ("RW123", severity, [3])


def test_different_settings_are_a_warning_and_names_of_interfaces_none() -> None:
    settings = {"NCCL_ALGO": "Tree", "GLOO_SOCKET_IFNAME": "eth1", "NCCL_DEBUG": "INFO"}
    (finding,) = find_differences(changed(1, settings=settings))

    assert (finding.code, finding.severity, ranks(finding)) == ("RW125", "warning", [1])
    assert "NCCL_ALGO" in finding.summary and "(not set) on ranks 0, 2, 3" in finding.summary


def test_an_address_of_ones_own_is_told_only_where_there_are_several_hosts() -> None:
    homes = [replace(one, address=f"192.168.0.{one.rank}", route=f"192.168.0.{one.rank}") for one in FOUR]
    homes[2] = replace(homes[2], address="127.0.1.1")
    finding = find_unreachable_address(homes)

    assert finding is not None and (finding.code, ranks(finding)) == ("RW114", [2])
    assert find_unreachable_address([replace(one, address="10.0.0.9") if one.rank != 2 else one for one in homes]) is None  # it dials them
    assert find_unreachable_address([replace(one, host="node-a", address="127.0.1.1") for one in FOUR]) is None
