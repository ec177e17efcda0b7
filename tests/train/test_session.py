"""session() on one machine: it starts, it says what is wrong to everybody, and it ends on every way out."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import rankwise
from rankwise.errors import UsageError
from tests.ports import free_port
from tests.train.stage import Part, Stage, rank_env, stage

TELL_SOON = {"registration.TELL_AFTER_S": 0.3, "registration.TELL_EVERY_S": 0.3}  # who is waited for


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("cast")) as it:
        yield it


def same_finding(parts: list[Part]) -> dict:
    """The finding that all of these ranks raised; fails if they do not agree."""
    assert [part.code for part in parts] == [3] * len(parts), "\n".join(part.text for part in parts)
    findings = [part.finding for part in parts]
    assert all(finding == findings[0] for finding in findings), findings
    return findings[0]


def test_ranks_become_one_job_and_leave_nothing(cast: Stage) -> None:
    parts = cast.end(cast.play_all("sum", 4))

    assert [part.code for part in parts] == [0] * 4, parts[0].text
    assert {part.told["sum"] for part in parts} == {6.0}
    assert [part.told["local"] for part in parts] == [0, 1, 2, 3]
    assert all(part.told["left"] and part.told["backend"] == "gloo" for part in parts)
    assert "4 rank(s) with gloo on cpu" in parts[0].text


def test_a_process_has_one_session_after_the_other(cast: Stage) -> None:
    parts = cast.end(cast.play_all("sum", 2, num_sessions_before=2))

    assert [(part.code, part.told.get("sum")) for part in parts] == [(0, 1.0)] * 2, parts[0].text


def test_a_bare_process_is_a_world_of_one_without_a_socket(cast: Stage) -> None:
    (part,) = cast.end([cast.play("sum", {})])

    assert (part.code, part.told["world"], part.told["sum"], part.told["backend"]) == (0, 1, 0.0, "none")


def test_a_bare_process_has_device_meshes_and_what_needs_them(cast: Stage) -> None:
    (part,) = cast.end([cast.play("mesh", {})])

    assert (part.code, part.told["sum"]) == (0, 6.0), part.text


@pytest.mark.parametrize("env", [{"RANK": "0"}, {"PMIX_RANK": "0"}, {"RANK": "0", "WORLD_SIZE": "four"}, {"WORLD_SIZE": "four"}], ids=str)
def test_a_rank_of_an_unknown_world_does_not_train_alone(cast: Stage, env: dict[str, str]) -> None:
    (part,) = cast.end([cast.play("sum", env)])

    assert part.finding["code"] == "RW120" and "WORLD_SIZE" in part.finding["summary"], part.text


@pytest.mark.parametrize("address", ["127.0.1.1", "::1"])
def test_ranks_meet_at_whatever_loopback_address_they_are_given(cast: Stage, address: str) -> None:
    """Many systems give 127.0.1.1 for `hostname -i`."""
    port = free_port()
    parts = cast.end([cast.play("sum", rank_env(rank, 2, port, address), timeout_s=20.0) for rank in range(2)])

    assert [part.code for part in parts] == [0, 0], parts[1].text


def test_a_missing_rank_is_named_by_every_rank(cast: Stage) -> None:
    parts = cast.end(cast.play_all("sum", 4, skip=(2,), timeout_s=4.0))

    finding = same_finding(parts)
    assert (finding["code"], finding["stage"]) == ("RW101", "registration")
    assert [culprit["rank"] for culprit in finding["culprits"]] == [2]
    assert "alone: ranks on other hosts need one that reaches it" in finding["why"]  # MASTER_ADDR is loopback
    assert "3 of 4 ranks registered, waiting for rank 2" in parts[0].text  # while it waits
    assert all("RW101" in part.text.split("TOLD")[0] for part in parts), "reported before anyone leaves"


def test_a_late_rank_is_waited_for(cast: Stage) -> None:
    port = free_port()
    first = cast.play("sum", rank_env(0, 2, port), limits=TELL_SOON)
    cast.until(first, "waiting for rank 1")
    parts = [first, cast.play("sum", rank_env(1, 2, port))]

    assert [part.code for part in cast.end(parts)] == [0, 0]
    assert "1 of 2 ranks registered, waiting for rank 1" in parts[0].text


def test_two_processes_with_one_rank_are_both_named(cast: Stage) -> None:
    port = free_port()
    parts = cast.end([cast.play("sum", rank_env(rank, 3, port)) for rank in (0, 1, 1)])

    finding = same_finding(parts)
    assert (finding["code"], finding["stage"]) == ("RW102", "registration")
    assert [culprit["rank"] for culprit in finding["culprits"]] == [1, 1]
    assert len({culprit["pid"] for culprit in finding["culprits"]}) == 2


@pytest.mark.parametrize("ranks", [(0, 0), (0, 0, 1), (0, 0, 0, 1)])
def test_two_processes_that_are_rank_0_are_named_where_the_launcher_keeps_the_store(cast: Stage, ranks: tuple[int, ...]) -> None:
    port = free_port()
    keeper = cast.play("keep_store", {}, port=port)
    cast.until(keeper, "open")
    envs = [rank_env(rank, len(ranks), port) | {"TORCHELASTIC_USE_AGENT_STORE": "True"} for rank in ranks]
    parts = cast.end([cast.play("sum", env, timeout_s=20.0) for env in envs])
    cast.kill(keeper, signal.SIGKILL)
    cast.end([keeper])

    finding = same_finding(parts)
    assert (finding["code"], [culprit["rank"] for culprit in finding["culprits"]]) == ("RW102", [0] * ranks.count(0))


@pytest.mark.parametrize("sizes", [(3, 3, 4), (4, 3, 3)])
def test_a_different_world_size_is_told_at_once(cast: Stage, sizes: tuple[int, ...]) -> None:
    port, began = free_port(), time.monotonic()
    parts = cast.end([cast.play("sum", rank_env(rank, size, port)) for rank, size in enumerate(sizes)])

    finding = same_finding(parts)
    assert (finding["code"], [culprit["rank"] for culprit in finding["culprits"]]) == ("RW112", [sizes.index(4)])
    assert time.monotonic() - began < 35  # not the five minutes that a late rank is waited for


def test_a_rank_that_is_interrupted_says_so_to_the_others(cast: Stage) -> None:
    parts = cast.play_all("sum", 3, skip=(2,), limits=TELL_SOON)
    cast.until(parts[0], "2 of 3 ranks registered, waiting for rank 2")
    cast.kill(parts[1], signal.SIGINT)
    cast.end(parts)

    assert "KeyboardInterrupt" in parts[1].text
    assert (parts[0].finding["code"], parts[0].finding["culprits"][0]["rank"]) == ("RW110", 1)
    assert "KeyboardInterrupt" in parts[0].finding["summary"]


def test_the_port_of_the_store_is_held_by_another_program(cast: Stage) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        (part,) = cast.end([cast.play("sum", rank_env(0, 2, holder.getsockname()[1]), timeout_s=5.0)])

    assert (part.finding["code"], part.finding["stage"]) == ("RW107", "store")
    assert f"pid {os.getpid()}" in part.finding["summary"]


def test_an_exception_in_the_body_ends_the_group_on_every_rank(cast: Stage) -> None:
    parts = cast.end(cast.play_all("raise", 2, rank=1))

    assert [part.code for part in parts] == [1, 1]
    assert "ValueError: bad sample" in parts[1].text


def test_ctrl_c_in_the_body_ends_the_rank_at_once(cast: Stage) -> None:
    parts = cast.play_all("wait", 2)
    for part in parts:
        cast.until(part, "started")
    began = time.monotonic()
    for part in parts:
        cast.kill(part, signal.SIGINT)
    cast.end(parts)

    assert all("KeyboardInterrupt" in part.text for part in parts)
    assert time.monotonic() - began < 9  # destroying the group may take 10 s where others do not answer


def test_models_that_differ_are_told_with_both_sides(cast: Stage) -> None:
    finding = same_finding(cast.end(cast.play_all("agree", 3, layers={"1": [3, 5]})))

    assert (finding["code"], finding["stage"], [c["rank"] for c in finding["culprits"]]) == ("RW216", "parameters", [1])
    assert "0.weight (4, 3) float32 on rank 0 and 0.weight (5, 3) float32 on rank 1" in finding["summary"]


def test_models_that_agree_get_the_values_of_rank_0(cast: Stage) -> None:
    parts = cast.end(cast.play_all("agree", 2))

    assert [part.code for part in parts] == [0, 0]
    assert parts[0].told["weights"] == parts[1].told["weights"]


def test_gradients_that_were_not_synchronised_are_found(cast: Stage) -> None:
    assert [part.code for part in cast.end(cast.play_all("gradients", 2))] == [0, 0]
    finding = same_finding(cast.end(cast.play_all("gradients", 2, synchronised=False)))
    unused = same_finding(cast.end(cast.play_all("gradients", 3, synchronised=False, alike=True, unused_on=1)))

    assert (finding["code"], finding["stage"]) == ("RW124", "gradient")
    assert "0.weight" in finding["summary"]
    assert (unused["code"], [culprit["rank"] for culprit in unused["culprits"]]) == ("RW215", [1])


def test_wrong_arguments_are_told_before_anything_is_touched(cast: Stage) -> None:
    parts = cast.end([cast.play("sum", {}, timeout_s=0.0), cast.play("sum", {}, backend="glooo")])

    assert [part.finding["code"] for part in parts] == ["RW001", "RW001"]
    assert "glooo" in parts[1].finding["summary"]


@pytest.mark.parametrize("seconds", [timedelta(minutes=1), "60", float("inf"), float("nan"), -1, 0])
@pytest.mark.parametrize("name", ["timeout_s", "collective_timeout_s"])
def test_a_timeout_is_a_number_of_seconds(name: str, seconds: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} must be a number of seconds"), rankwise.session(**{name: seconds}):
        pass


def test_the_environment_must_be_whole(cast: Stage) -> None:
    (part,) = cast.end([cast.play("sum", {"WORLD_SIZE": "2", "RANK": "1"})])

    assert (part.finding["code"], part.finding["stage"]) == ("RW120", "environment")
    assert "MASTER_ADDR" in part.finding["summary"]


def test_a_rank_that_does_not_make_the_call_is_named(cast: Stage) -> None:
    parts = cast.end(cast.play_all("agree", 2, skip_on=[1], patience_s=1.5))

    assert (parts[0].finding["code"], parts[0].finding["stage"]) == ("RW126", "parameters")
    assert [culprit["rank"] for culprit in parts[0].finding["culprits"]] == [1]


def test_a_rank_that_has_left_is_not_waited_for(cast: Stage) -> None:
    parts = cast.end(cast.play_all("agree", 3, leave_on=[1], patience_s=300.0))

    finding = same_finding([parts[0], parts[2]])
    assert (finding["code"], finding["stage"], [culprit["rank"] for culprit in finding["culprits"]]) == ("RW126", "parameters", [1])
    assert "rank 1 left the session" in finding["summary"]


@pytest.mark.skipif(not os.environ.get("RANKWISE_LONG"), reason="64 processes; RANKWISE_LONG=1 runs it")
@pytest.mark.parametrize("missing", [(), (37,)])
def test_64_ranks_start_and_each_of_them_names_the_one_that_is_missing(cast: Stage, missing: tuple[int, ...]) -> None:
    parts = cast.end(cast.play_all("sum", 64, skip=missing, timeout_s=20.0), timeout_s=150)

    if not missing:
        assert [part.code for part in parts] == [0] * 64, parts[0].text
        assert {part.told["sum"] for part in parts} == {63 * 64 / 2}
    else:
        finding = same_finding(parts)
        assert (finding["code"], [culprit["rank"] for culprit in finding["culprits"]]) == ("RW101", [37])
    print("slowest start", max(part.told["seconds"] for part in parts))


def test_a_missing_rank_0_is_named_where_the_launcher_keeps_the_store(cast: Stage) -> None:
    port = free_port()
    keeper = cast.play("keep_store", {}, port=port)
    cast.until(keeper, "open")
    envs = [rank_env(rank, 3, port) | {"TORCHELASTIC_USE_AGENT_STORE": "True"} for rank in (1, 2)]
    parts = cast.end([cast.play("sum", env, timeout_s=3.0) for env in envs])
    cast.kill(keeper, signal.SIGKILL)
    cast.end([keeper])

    finding = same_finding(parts)
    assert (finding["code"], [culprit["rank"] for culprit in finding["culprits"]]) == ("RW101", [0])


@pytest.mark.skipif(not os.environ.get("RANKWISE_LONG"), reason="waits some seconds; RANKWISE_LONG=1 runs it")
def test_a_rank_of_an_earlier_attempt_that_was_killed_while_registering_is_not_waited_for(cast: Stage) -> None:
    port = free_port()
    keeper = cast.play("keep_store", {}, port=port, num_lost=1)
    cast.until(keeper, "open")
    parts = cast.end([cast.play("sum", rank_env(r, 2, port) | {"TORCHELASTIC_USE_AGENT_STORE": "True"}, timeout_s=20.0) for r in range(2)])
    cast.kill(keeper, signal.SIGKILL)
    cast.end([keeper])

    assert [part.code for part in parts] == [0, 0], parts[0].text


def test_a_rank_that_is_killed_between_two_stages_is_named_by_the_others(cast: Stage) -> None:
    parts = cast.end(cast.play_all("die", 3, rank=1))

    finding = same_finding([parts[0], parts[2]])
    assert (finding["code"], finding["stage"], [culprit["rank"] for culprit in finding["culprits"]]) == ("RW110", "parameters", [1])


def test_a_rank_outside_its_world_is_told(cast: Stage) -> None:
    port = free_port()
    alone = cast.play("sum", rank_env(1, 1, port))
    parts = cast.end([alone, *(cast.play("sum", rank_env(rank, 2, port)) for rank in (0, 2))])

    assert [part.finding["code"] for part in parts] == ["RW112"] * 3
    assert same_finding(parts[1:])["culprits"][0]["rank"] == 2


@pytest.mark.parametrize(("rank", "world_size", "said"), [(2, 2, "has ranks 0 to 1"), (0, 0, "has no rank"), (3, 1, "has rank 0 alone")])
def test_a_rank_out_of_range_says_so_also_where_nobody_listens(cast: Stage, rank: int, world_size: int, said: str) -> None:
    env, limits = rank_env(rank, world_size, free_port()), {"session._OUT_OF_RANGE_S": 1.0}
    (part,) = cast.end([cast.play("sum", env, timeout_s=60.0, limits=limits)])

    assert part.finding["code"] == "RW112"
    assert f"rank {rank} is out of range: WORLD_SIZE={world_size} {said}" in part.finding["summary"]
