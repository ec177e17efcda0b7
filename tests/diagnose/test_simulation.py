"""Programs run step by step: no moment of a correct one may raise an alarm, and a faulty one must be told for what it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rankwise.diagnose import diagnose
from tests.diagnose.jobs import (
    Slot,
    alarms,
    echo,
    job,
    killed,
    raised,
    root,
)
from tests.diagnose.simulation import Job, Streams, start

SLOW = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
WORLDS = st.sampled_from([2, 3, 4])


@st.composite
def correct_jobs(draw, *, transfers: bool = True) -> Job:
    """A program that is right: everybody calls the same collectives in the same order, every send has its recv."""
    world_size = draw(WORLDS)
    groups = {"1": (0, 1), "2": tuple(range(1, world_size))} if world_size > 2 else {}
    programs: list[list[Slot]] = [[] for _ in range(world_size)]
    for i in range(draw(st.integers(1, 7))):
        at = f"train.py:{10 + i} main"
        kind = draw(st.sampled_from(["all_reduce", "barrier", "broadcast", "group", "transfer" if transfers else "all_reduce"]))
        if kind == "transfer":
            source, target = draw(st.permutations(range(world_size)))[:2]
            programs[source].append(Slot("send", at=at, peer=target))
            programs[target].append(Slot("recv", at=at, peer=source))
        elif kind == "group" and groups:
            name = draw(st.sampled_from(sorted(groups)))
            for member in groups[name]:
                programs[member].append(Slot("all_reduce", at=at, group=name))
        else:
            op = "all_reduce" if kind == "group" else kind
            peer = draw(st.integers(0, world_size - 1)) if op == "broadcast" else None
            for program in programs:
                program.append(Slot(op, at=at, peer=peer))
    return start(programs, groups)


@SLOW
@given(correct_jobs(), st.lists(st.integers(0, 3), max_size=40), st.sampled_from([(), (0,), (1,), (0, 1, 2, 3)]))
def test_no_moment_of_a_correct_program_raises_an_alarm(running: Job, order: list[int], without_recorder: tuple[int, ...]) -> None:
    for number in order:
        running.step(number % len(running.processes))

    assert alarms(running.evidence(without_recorder=without_recorder)) == []


@SLOW
@given(correct_jobs())
def test_a_correct_program_runs_to_its_end(running: Job) -> None:
    running.run()

    assert all(process.has_ended for process in running.processes), "the simulation itself is at fault"
    assert diagnose(running.evidence()) == []


@st.composite
def jobs_that_wait_for_one(draw) -> tuple[Job, int]:
    """A correct program in which one rank, between two operations, does not go on, and all others have come as far as they can."""
    running = draw(correct_jobs())
    for number in draw(st.lists(st.integers(0, 3), max_size=20)):
        running.step(number % len(running.processes))
    late = draw(st.integers(0, len(running.processes) - 1))
    assume(not running.processes[late].is_inside and not running.processes[late].has_ended)
    running.run(without=late)
    assume(any(process.is_inside for process in running.processes))
    return running, late


@SLOW
@given(jobs_that_wait_for_one())
def test_whoever_keeps_all_others_waiting_is_the_one_that_is_named(story: tuple[Job, int]) -> None:
    running, late = story

    found = root(running.evidence())

    assert {place.rank for place in found.culprits} == {late}, found
    assert (found.certain, found.deadlock) == (False, False), "it may still come"


@SLOW
@given(jobs_that_wait_for_one())
def test_a_rank_that_was_killed_is_the_one_that_is_named(story: tuple[Job, int]) -> None:
    running, late = story
    evidence = running.evidence()

    found = root(replace(evidence, ranks={**evidence.ranks, late: killed(evidence.ranks[late])}))

    assert (found.code, [place.rank for place in found.culprits]) == ("RW403", [late])


@SLOW
@given(jobs_that_wait_for_one())
def test_the_echoes_of_an_exception_are_not_taken_for_it(story: tuple[Job, int]) -> None:
    running, late = story
    ranks = {
        r: raised(e, at="data.py:9 load") if r == late else echo(e) if running.processes[r].is_inside else e
        for r, e in running.evidence().ranks.items()
    }

    found = root(job(*ranks.values(), exit_code=1))

    assert (found.code, [place.rank for place in found.culprits]) == ("RW401", [late])


@SLOW
@given(correct_jobs(transfers=False), st.data())
def test_a_rank_that_skips_a_collective_is_named_or_nobody_is_named_for_certain(running: Job, data: st.DataObject) -> None:
    guilty = data.draw(st.integers(0, len(running.processes) - 1))
    program = running.processes[guilty].program
    if not program:
        return
    del program[data.draw(st.integers(0, len(program) - 1))]
    running.run()
    stuck = [number for number, process in enumerate(running.processes) if not process.has_ended]
    if not stuck:
        return  # a broadcast's root, or one that nobody missed

    found = root(running.evidence())

    assert found.deadlock, found
    named = {place.rank for place in found.culprits}
    assert guilty in named or found.code == "RW218", found
    assert not found.certain or named == {guilty} or found.code == "RW218", found


@pytest.mark.parametrize("world_size", [3, 4, 8])
@pytest.mark.parametrize("position", ["first", "middle", "last"])
@pytest.mark.parametrize("recorder", [True, False])
def test_the_rank_that_skips_one_of_different_collectives_is_the_one_to_blame(world_size: int, position: str, recorder: bool) -> None:
    guilty = {"first": 0, "middle": world_size // 2, "last": world_size - 1}[position]
    program = [Slot("all_reduce", at="train.py:10 main"), Slot("all_gather", at="train.py:11 main"), Slot("barrier", at="train.py:12 main")]
    running = start([program[:1] + program[2:] if r == guilty else program for r in range(world_size)])
    running.run()

    found = root(running.evidence(without_recorder=() if recorder else tuple(range(world_size))))

    assert {place.rank for place in found.culprits} == {guilty}
    assert (found.certain, found.deadlock) == (True, True)
    assert [wait.rank for wait in found.waiting] == [r for r in range(world_size) if r != guilty]


@pytest.mark.parametrize("world_size", [3, 4, 8])
@pytest.mark.parametrize("recorder", [True, False])
def test_a_rank_with_fewer_rounds_leaves_the_others_waiting(world_size: int, recorder: bool) -> None:
    running = start([[Slot("all_reduce")] * (4 if r == 1 else 5) for r in range(world_size)])
    running.run()

    found = root(running.evidence(without_recorder=() if recorder else tuple(range(world_size))))

    assert found.code in ("RW402", "RW213")
    assert {place.rank for place in found.culprits} == {1}
    assert found.deadlock


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_ring_in_which_everybody_receives_first_is_a_deadlock(world_size: int) -> None:
    running = start(
        [[Slot("recv", peer=(r - 1) % world_size, at="ring.py:4 turn"), Slot("send", peer=(r + 1) % world_size)] for r in range(world_size)]
    )
    running.run()

    found = root(running.evidence())

    assert (found.code, found.certain, found.deadlock) == ("RW212", True, True)


def test_two_groups_entered_in_opposite_order_are_a_deadlock() -> None:
    row, column = Slot(group="1", at="grid.py:4 rows"), Slot(group="2", at="grid.py:5 columns")
    running = start([[row, column], [column, row]], {"1": (0, 1), "2": (0, 1)})
    running.run()

    found = root(running.evidence())

    assert (found.code, found.deadlock) == ("RW218", True)


# -- on GPUs ------------------------------------------------------------------------------------------------------------------


@st.composite
def streams(draw) -> Streams:
    running = draw(correct_jobs(transfers=False))
    programs = [process.program for process in running.processes]
    return Streams(programs, running.groups, [0] * len(programs), [0] * len(programs))


STEPS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["queue", "queue", "complete", "wait"])), max_size=50)


@SLOW
@given(streams(), STEPS)
def test_no_moment_of_a_correct_program_on_gpus_raises_an_alarm(running: Streams, steps: list[tuple[int, str]]) -> None:
    for number, what in steps:
        running.step(number % len(running.programs), what)

    assert alarms(running.evidence()) == []


@SLOW
@given(streams(), STEPS, st.integers(0, 3))
def test_on_gpus_too_whoever_keeps_the_others_waiting_is_named(running: Streams, steps: list[tuple[int, str]], late: int) -> None:
    late %= len(running.programs)
    for number, what in steps:
        running.step(number % len(running.programs), what)
    assume(late not in running.idle and running.queued[late] < len(running.programs[late]))
    running.settle(without=late)
    assume(running.idle and running.completed[late] == running.queued[late])

    found = root(running.evidence())

    assert {place.rank for place in found.culprits} == {late}, found
    assert (found.certain, found.deadlock) == (False, False)
