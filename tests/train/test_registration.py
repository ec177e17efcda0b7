"""How ranks register: who is present, whose word counts, and what all are told; the ranks are threads at a store in memory."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import pytest
from torch.distributed import HashStore

from rankwise.findings import Finding
from rankwise.ranks import MeetingPlace
from rankwise.train import registration
from rankwise.train.errors import start_finding
from rankwise.train.rank_info import RankInfo
from rankwise.train.registration import Registration
from rankwise.train.store_client import StoreClient

PLACE = MeetingPlace("node-a", 29500)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"_QUIET_S": 0.01, "_SETTLE_S": 0.05, "_GRACE_S": 0.2}.items():
        monkeypatch.setattr(registration, name, seconds)


@pytest.fixture
def client() -> StoreClient:
    return StoreClient(HashStore())


def info(rank: int, world_size: int = 3, id: str = "", **facts: Any) -> RankInfo:
    return RankInfo(id or f"id-{rank}", rank, world_size, rank, "node-a", 100 + rank, **facts)


def register(client: StoreClient, *infos: RankInfo, timeout_s: float = 20.0) -> list[dict[str, Any]]:
    """What each of them came to; all at once."""
    ranks = [Registration(client, PLACE, one) for one in infos]
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(lambda rank: rank.run(timeout_s), ranks))


def write(client: StoreClient, event: dict[str, Any]) -> None:
    client.put(f"rankwise/event/{client.add('rankwise/events', 1)}", json.dumps(event))


def finding(outcome: dict[str, Any]) -> Finding:
    return Finding.from_dict(outcome["finding"])


def test_all_ranks_get_one_outcome_in_the_order_of_the_ranks(client: StoreClient) -> None:
    outcomes = register(client, info(2), info(0), info(1))

    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert [one["id"] for one in outcomes[0]["infos"]] == ["id-0", "id-1", "id-2"]
    assert outcomes[0]["notes"] == []


def test_a_process_of_an_earlier_attempt_that_does_not_answer_is_nobody(client: StoreClient) -> None:
    for rank in range(3):
        write(client, {"info": asdict(info(rank, id=f"earlier-{rank}"))})
    write(client, {"here": "earlier-1", "attempt": "earlier-0"})  # confirmed, but to another rank 0

    outcomes = register(client, info(0), info(1), info(2))

    assert [one["id"] for one in outcomes[1]["infos"]] == ["id-0", "id-1", "id-2"]


def test_a_rank_of_another_job_is_not_counted(client: StoreClient) -> None:
    write(client, {"info": asdict(info(1, 2, id="other", job="another"))})

    outcome = register(client, info(0, 2, job="this one"), timeout_s=0.2)[0]

    assert finding(outcome).code == "RW101" and outcome["present"] == 1
    assert client.look("rankwise/reply/other") is None


def test_what_no_late_rank_could_put_right_is_told_long_before_the_time_is_over(client: StoreClient) -> None:
    began = time.monotonic()
    outcomes = register(client, info(0), info(1, world_size=4))

    assert time.monotonic() - began < 15
    assert outcomes[0] == outcomes[1] and finding(outcomes[0]).code == "RW112"
    assert outcomes[0]["present"] == 2


def test_two_that_are_rank_0_both_hear_of_it(client: StoreClient) -> None:
    outcomes = register(client, info(0, id="one"), info(0, id="other"))

    assert [finding(outcome).code for outcome in outcomes] == ["RW102", "RW102"]
    assert {place.rank for place in finding(outcomes[0]).culprits} == {0}


def test_who_leaves_before_all_are_here_is_what_the_others_hear(client: StoreClient) -> None:
    leaving = Registration(client, PLACE, info(1))
    write(client, {"info": asdict(info(1))})
    leaving.leave_word(start_finding("RW110", "rank 1 left during start-up: KeyboardInterrupt"))

    outcome = register(client, info(0))[0]

    assert finding(outcome).summary.endswith("KeyboardInterrupt")
    assert outcome["present"] == 1, "it cannot report any more"


def test_the_word_of_a_rank_0_that_leaves_is_the_outcome(client: StoreClient) -> None:
    leader = Registration(client, PLACE, info(0, 2))
    client.put("rankwise/reply/id-1", json.dumps({"attempt": "id-0"}))
    leader.leave_word(start_finding("RW110", "rank 0 left during start-up: MemoryError"))

    outcome = register(client, info(1, 2))[0]

    assert finding(outcome).summary.endswith("MemoryError") and outcome["present"] == 0


def test_without_rank_0_the_ranks_that_wait_tell_each_other_the_same(client: StoreClient) -> None:
    for rank in (1, 2):
        write(client, {"info": asdict(info(rank))})

    outcomes = register(client, info(1), info(2), timeout_s=0.02)

    assert outcomes[0]["finding"] == outcomes[1]["finding"] and finding(outcomes[0]).code == "RW101"
    assert [place.rank for place in finding(outcomes[0]).culprits][:1] == [0]
    assert {outcome["attempt"] for outcome in outcomes} <= {"id-1", "id-2"}


def test_a_rank_that_its_launcher_started_again_counts_once(client: StoreClient) -> None:
    write(client, {"info": asdict(info(1, id="before", launcher=7))})

    outcome = register(client, info(1, launcher=7), timeout_s=0.02)[0]

    assert outcome["present"] == 1
    assert "rank 1 on" in finding(outcome).why


def test_a_rank_0_that_stops_in_between_is_named(client: StoreClient) -> None:
    client.put("rankwise/reply/id-1", json.dumps({"attempt": "id-0"}))

    outcome = register(client, info(1, 2), timeout_s=0.02)[0]

    assert finding(outcome).code == "RW110" and not finding(outcome).certain
    assert [place.rank for place in finding(outcome).culprits] == [0]


def test_different_versions_are_noted_or_stop_all(client: StoreClient) -> None:
    infos = [info(rank, 2, versions={"torch": "2.13.0", "python": f"3.11.{rank}"}) for rank in range(2)]
    outcome = register(client, *infos)[0]
    assert [note["code"] for note in outcome["notes"]] == ["RW123"] and len(outcome["infos"]) == 2

    others = [info(rank, 2, id=f"again-{rank}", versions={"torch": f"2.{rank + 12}.0"}) for rank in range(2)]
    assert [finding(outcome).code for outcome in register(client, *others)] == ["RW123", "RW123"]
