"""Ranks that go through the stages in step: what one cannot pass, all hear of. The ranks are threads at a store in memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed import HashStore

from rankwise.errors import StartError
from rankwise.ranks import MeetingPlace
from rankwise.stages import BACKEND, DEVICES, PARAMETERS
from rankwise.train import assembly
from rankwise.train.assembly import Assembly
from rankwise.train.errors import start_finding
from rankwise.train.rank_info import RankInfo
from rankwise.train.store import OpenStore
from rankwise.train.store_client import StoreClient

GONE = 4_999_999  # above what Linux counts to


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"_HEAR_S": 0.1, "_LEAVE_S": 0.2, "_LOOK_EVERY_S": 0.01}.items():
        monkeypatch.setattr(assembly, name, seconds)


def gathered(num_ranks: int, **facts: dict[int, Any]) -> list[Assembly]:
    """So many ranks that have registered; `facts` by rank."""
    store = HashStore()

    def rank(number: int) -> Assembly:
        own = {name: values[number] for name, values in facts.items() if number in values}
        info = RankInfo(f"id-{number}", number, num_ranks, number, **{"host": "node-a", "pid": os.getpid(), **own})
        opened = OpenStore(StoreClient(store), lambda: store, "127.0.0.1", is_ours=number == 0)
        return Assembly(opened, MeetingPlace("127.0.0.1", 29500), info)

    ranks = [rank(number) for number in range(num_ranks)]
    together(ranks, lambda one: one.gather(20.0))
    return ranks


def together(ranks: list[Assembly], work: Callable[[Assembly], Any]) -> list[Any]:
    """What `work` returned on each rank, or the error it raised."""

    def tried(one: Assembly) -> Any:
        try:
            return work(one)
        except BaseException as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(tried, ranks))


def codes(outcomes: list[Any]) -> list[str]:
    return [outcome.finding.code if isinstance(outcome, StartError) else type(outcome).__name__ for outcome in outcomes]


def test_a_stage_is_passed_when_all_have_said_so_and_all_hear_what_was_said() -> None:
    ranks = gathered(3)
    assert [[info.rank for info in one.infos] for one in ranks] == [[0, 1, 2]] * 3

    answers = together(ranks, lambda one: one.pass_stage(DEVICES, 20.0, note="even" if one.rank % 2 == 0 else "odd"))

    assert answers == [{"notes": {"even": [0, 2], "odd": [1]}}] * 3
    assert together(ranks, lambda one: one.pass_stage(DEVICES, 20.0, visit=1)) == [{"notes": {}}] * 3


def test_who_is_not_through_is_waited_for() -> None:
    ranks, ready_at = gathered(2), time.monotonic() + 0.1

    together(ranks, lambda one: one.pass_stage(BACKEND, 20.0, lambda: one.rank == 0 or time.monotonic() > ready_at))

    assert time.monotonic() > ready_at


def test_what_one_cannot_pass_is_the_same_finding_on_all_and_the_first_counts() -> None:
    def is_done(rank: int) -> bool:
        if rank:
            raise StartError(start_finding("RW114", f"rank {rank} cannot be reached", stage=BACKEND))
        return True

    outcomes = together(gathered(3), lambda one: one.pass_stage(BACKEND, 20.0, lambda: is_done(one.rank)))

    assert codes(outcomes) == ["RW114"] * 3
    assert len({error.finding.summary for error in outcomes}) == 1


def test_who_does_not_come_is_named_by_those_who_wait() -> None:
    is_there = threading.Event()

    def pass_it(one: Assembly) -> None:
        if one.rank == 0:
            is_there.wait(20)
        one.pass_stage(PARAMETERS, 0.1 if one.rank == 0 else 20.0, lambda: one.rank == 0 or not is_there.set())

    outcomes = together(gathered(3)[:2], pass_it)

    assert codes(outcomes) == ["RW126", "RW126"]
    assert [place.rank for place in outcomes[0].finding.culprits] == [2]
    assert "parameters agreed" in outcomes[0].finding.summary and outcomes[0].finding.stage == "parameters"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("no such layer")], ids=str)
def test_an_exception_of_ones_own_is_told_and_stays_ones_own(error: BaseException) -> None:
    def is_done(rank: int) -> bool:
        if rank == 1:
            raise error
        return True

    outcomes = together(gathered(3), lambda one: one.pass_stage(BACKEND, 20.0, lambda: is_done(one.rank)))

    assert outcomes[1] is error
    assert codes([outcomes[0], outcomes[2]]) == ["RW110", "RW110"]
    said = f"{type(error).__name__}: {error}".removesuffix(": ")
    assert outcomes[0].finding.summary == f"rank 1 on node-a left during start-up: {said}"


class Textless(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]


def test_an_exception_whose_text_cannot_be_had_is_told_and_stays_ones_own() -> None:
    ranks, error, other = gathered(2), Textless(), ValueError("another")

    ranks[1].note_failure(error)
    ranks[0].note_failure(other)

    assert "rank 1 on" in other.__notes__[0] and "with Textless: Textless failed first" in other.__notes__[0]
    with pytest.raises(Textless), ranks[1]._told_if_interrupted(lambda finding: None):
        raise error


class Frozen(Exception):
    """As `attrs.frozen` and `dataclass(frozen=True)` make them."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


def test_an_exception_that_takes_no_attributes_stays_ones_own() -> None:
    ranks = gathered(2)

    ranks[1].note_failure(Frozen())
    ranks[0].note_failure(Frozen())


def test_a_rank_that_left_is_named_and_not_waited_for() -> None:
    ranks = gathered(3)
    ranks[2].leave()

    outcomes = together(ranks[:2], lambda one: one.pass_stage(PARAMETERS, 20.0))

    assert codes(outcomes) == ["RW126", "RW126"] and "rank 2 left the session" in outcomes[0].finding.summary


def test_a_process_that_is_gone_is_named_by_its_own_host_alone() -> None:
    ranks = gathered(3, pid={2: GONE})
    outcomes = together(ranks[:2], lambda one: one.pass_stage(BACKEND, 20.0))

    assert codes(outcomes) == ["RW110", "RW110"]
    assert outcomes[1].finding.summary == "rank 2 on node-a ended during start-up, after registering"
    elsewhere, ready_at = gathered(2, pid={1: GONE}, host={1: "node-b"}), time.monotonic() + 0.1  # its pids are not ours
    assert together(elsewhere, lambda one: one.pass_stage(BACKEND, 20.0, lambda: time.monotonic() > ready_at)) == [{"notes": {}}] * 2


def test_the_keeper_of_the_store_leaves_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "_LEAVE_S", 20.0)
    ranks, leaving, left_before_the_keeper = gathered(3), set[int](), set[int]()

    def leave(one: Assembly) -> None:
        time.sleep(0.02 * one.rank)
        leaving.add(one.rank)
        one.leave()
        if one.rank == 0:
            left_before_the_keeper.update(leaving)

    together(ranks, leave)

    assert left_before_the_keeper == {0, 1, 2}


def test_what_failed_first_is_told_to_those_whose_errors_follow_from_it() -> None:
    ranks = gathered(3)
    first, follows = ValueError("bad sample"), RuntimeError("connection closed by peer")

    ranks[0].note_failure(SystemExit(0))
    ranks[1].note_failure(first)
    ranks[2].note_failure(follows)

    assert getattr(first, "__notes__", []) == []
    (note,) = follows.__notes__
    assert "rank 1 on node-a with ValueError: bad sample failed first" in note


def test_what_one_posts_the_others_of_this_attempt_read() -> None:
    one, other = gathered(2)
    one.post("model", "sizes")

    assert other.read("model", 1.0) == "sizes"
    assert other.read("nothing", 0.01) is None
    assert gathered(2)[1].read("model", 0.01) is None
    other.connection.set("key", b"of the group")
    assert one.connection.get("key") == b"of the group"
