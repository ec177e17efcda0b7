"""The whole verdict: what comes first when several things are wrong, and what holds for every verdict on any evidence."""

from __future__ import annotations

import json
import resource
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankwise.causes import all_causes
from rankwise.diagnose import diagnose
from rankwise.evidence.records import HostFacts, JobEvidence, RankEvidence, SentSignal
from rankwise.evidence.run_folder import load_evidence, save_evidence
from rankwise.findings import Finding
from tests.diagnose.chaos import Chaos
from tests.diagnose.jobs import (
    C10D,
    FIVE,
    HOME,
    LOADER,
    NOW_NS,
    Slot,
    alarms,
    before_init,
    busy,
    cast,
    did,
    echo,
    elsewhere,
    ended,
    expect,
    gradients,
    helper,
    in_init,
    job,
    killed,
    log_of,
    model,
    new_group,
    others,
    raised,
    rank,
    root,
    stack_of,
    terminated,
    waiting,
    waiting_ranks,
    worker,
)

TIMEOUT = "[../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 30000ms for recv operation to complete"
TELLS_NOT_WHO = tuple(f"RW{code}" for code in (201, 202, 203, 204, 205, 206, 207, 208, 209, 212, 219, 220, 221, 402))
CODES = {cause.code for cause in all_causes()}


# -- what comes first ---------------------------------------------------------------------------------------------------------


def test_a_crash_comes_before_the_waits_it_leaves_behind() -> None:
    evidence = job(waiting(0), raised(elsewhere(1)), busy(2), waiting(3))

    assert [finding.code for finding in diagnose(evidence)] == ["RW401"]


def test_a_disagreement_comes_before_a_rank_that_is_merely_busy() -> None:
    evidence = job(waiting(0), waiting(1, "barrier", "train.py:12 main", sizes=()), waiting(2), busy(3, after=[*FIVE, *did()]))

    assert root(evidence).code in ("RW202", "RW208")
    assert [place.rank for place in root(evidence).culprits] == [1]


def test_a_crash_before_the_start_comes_before_the_waits_in_init() -> None:
    evidence = job(in_init(0), raised(before_init(1)), before_init(2), world_size=4)

    assert root(evidence).code == "RW110"
    assert [place.rank for place in root(evidence).culprits] == [1]


def test_a_rank_that_left_early_explains_the_broken_connections() -> None:
    evidence = job(ended(rank(0), "sys_exit", code=0, at="train.py:30 stop"), echo(waiting(1)), echo(waiting(2)), exit_code=1)

    expect(root(evidence), "RW402", [0], "sys.exit(0)", "all_reduce", at="train.py:30")


def test_a_mismatch_comes_before_the_errors_it_made() -> None:
    evidence = job(
        raised(waiting(0, sizes=(8,)), "RuntimeError", "op.preamble.length <= op.nbytes. 36 vs 32", [C10D, "train.py:10 train"]),
        echo(waiting(1, sizes=(9,))),
        echo(waiting(2, sizes=(8,))),
        exit_code=1,
    )

    expect(root(evidence), "RW204", [1], "shape", deadlock=root(evidence).deadlock)


def test_the_mismatch_of_an_earlier_slot_does_not_explain_a_later_exception_of_the_users() -> None:
    mixed = [[*did(dtype="float32" if r else "int32"), *FIVE] for r in range(3)]
    evidence = job(
        raised(elsewhere(0, after=mixed[0]), "KeyError", "'x'"), *[echo(waiting(r, after=mixed[r])) for r in (1, 2)], exit_code=1
    )

    found = diagnose(evidence)

    assert "RW401" in [finding.code for finding in found], "the job ended because of the KeyError"


# -- RW410: torch's own patience ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world_size", "missing"), [(2, 0), (3, 1), (4, 3), (8, 5)])
@pytest.mark.parametrize("exit_code", [None, 1])
def test_rw410_names_the_rank_that_did_not_arrive(world_size: int, missing: int, exit_code: int | None) -> None:
    late = busy(missing, "train.py:20 evaluate")
    late = late if exit_code is None else terminated(late)

    found = root(job(*cast([missing], world_size, lambda r: late, lambda r: echo(waiting(r), message=TIMEOUT)), exit_code=exit_code))

    expect(found, "RW410", [missing], "timeout", f"rank {missing} did not arrive", "all_reduce", deadlock=False)
    assert found.severity == "error"
    assert waiting_ranks(found) == others([missing], world_size)


def test_rw410_a_rank_that_gave_up_later_is_not_the_missing_one() -> None:
    evidence = job(
        echo(waiting(0), message=TIMEOUT), echo(waiting(1), message=TIMEOUT), terminated(waiting(2)), terminated(busy(3)), exit_code=1
    )

    assert [place.rank for place in root(evidence).culprits] == [3]


def test_rw410_when_nobody_is_known_to_be_missing_nobody_is_blamed() -> None:
    evidence = job(*[echo(waiting(r), message=TIMEOUT) for r in range(3)], exit_code=1)

    expect(root(evidence), "RW410", [], "timeout", certain=False, deadlock=False)


def test_a_timeout_after_a_crash_is_an_echo() -> None:
    evidence = job(raised(elsewhere(0), ago_s=40), *[echo(waiting(r), message=TIMEOUT) for r in (1, 2)], exit_code=1)

    expect(root(evidence), "RW401", [0], "ValueError")


# -- RW900: nothing fits ------------------------------------------------------------------------------------------------------

TWO_PAIRS = (new_group(0, 1, name="1"), new_group(2, 3, name="2"))


def all_have_arrived() -> list[RankEvidence]:
    """Everybody is in a collective of its own group, and nobody is missing in it."""
    ops = ["all_reduce", "all_reduce", "all_gather", "all_gather"]
    return [waiting(r, op, f"train.py:{20 + r} main", group=str(1 + r // 2), groups=TWO_PAIRS) for r, op in enumerate(ops)]


def test_rw900_says_who_waits_where_and_blames_nobody() -> None:
    found = root(job(*all_have_arrived()))

    expect(found, "RW900", [], "not one rankwise knows", "rank 0 waits in all_reduce", "train.py:20", certain=False, deadlock=False)
    assert waiting_ranks(found) == [0, 1, 2, 3]


def test_rw900_an_end_that_nothing_explains() -> None:
    found = root(job(echo(waiting(0)), echo(waiting(1)), exit_code=1))

    assert (found.code, found.certain, found.deadlock) == ("RW900", False, False)
    assert "does not complete" not in found.summary, "the job is over"


def test_rw900_not_before_the_wait_is_long() -> None:
    assert diagnose(job(*all_have_arrived(), stall_after_s=60.0)) == []


# -- paths, and the way back from a folder ------------------------------------------------------------------------------------


def test_paths_are_as_the_user_would_open_them() -> None:
    evidence = job(waiting(0, at="/elsewhere/lib.py:3 f"), elsewhere(1, "pkg/data.py:9 load"), waiting(2, at="train.py:4 main"))

    found = root(evidence)

    assert [place.file for place in found.culprits] == ["pkg/data.py"]
    assert [wait.file for wait in found.waiting] == ["/elsewhere/lib.py", "train.py"]


def test_a_folder_next_to_the_jobs_own_is_not_taken_for_it() -> None:
    evidence = replace(job(waiting(0), elsewhere(1, f"{HOME}-old/data.py:9 load")), cwd=HOME)

    assert root(evidence).culprits[0].file == f"{HOME}-old/data.py"


STORIES = {
    "skipped": lambda: job(waiting(0), waiting(1, "barrier", "train.py:12 main", sizes=()), waiting(2), sources={"train.py": "x = 1\n"}),
    "stuck": lambda: job(waiting(0), elsewhere(1, helpers=(worker(5000, 4201, "data.py:9 load"),), inside=LOADER), waiting(2)),
    "crash": lambda: job(
        echo(waiting(0)), raised(elsewhere(1)), terminated(waiting(2)), exit_code=1, hosts=(HostFacts("node-a", shm_free=9),)
    ),
    "killed": lambda: job(
        killed(elsewhere(0, signals=(SentSignal(4200, 4200, 9, NOW_NS, stack_of("train.py:17 f")),)), by="itself"),
        echo(waiting(1)),
        exit_code=1,
    ),
    "start": lambda: job(in_init(0), before_init(1), in_init(2), launchers=(helper(1, 0, "launch.py:3"),), blind=("ptrace",)),
    "models": lambda: job(
        *[raised(elsewhere(r, models=(model(w=(8 + r,)),)), "RuntimeError", "appears not to match") for r in range(3)], exit_code=1
    ),
    "healthy": lambda: job(*[busy(r) for r in range(3)]),
}


@pytest.mark.parametrize("story", STORIES)
def test_evidence_read_back_from_its_folder_gives_the_same_verdict(story: str, tmp_path: Path) -> None:
    evidence = STORIES[story]()

    save_evidence(tmp_path, evidence)

    assert diagnose(load_evidence(tmp_path)) == diagnose(evidence)


# -- size ---------------------------------------------------------------------------------------------------------------------


def waiting_for_one(world_size: int, missing: int, slots: int = 2000) -> JobEvidence:
    """Everybody waits for one rank that is at work."""
    whole, short = log_of([*gradients(slots), Slot(done=False)]), log_of(gradients(slots))
    at_work, in_wait = busy(0, after=[]), waiting(0, after=[])
    ranks = {r: replace(in_wait, rank=r, pid=9000 + r, collectives=whole) for r in range(world_size)}
    ranks[missing] = replace(at_work, rank=missing, pid=9000 + missing, collectives=short)
    return job(*ranks.values())


@pytest.mark.parametrize("missing", [0, 200])
def test_many_ranks_are_judged_in_a_moment(missing: int) -> None:
    evidence = waiting_for_one(512, missing)
    started = time.process_time()

    found = root(evidence)

    assert [place.rank for place in found.culprits] == [missing]
    assert time.process_time() - started < 1.5


def test_many_ranks_at_different_collectives_are_compared_in_a_moment() -> None:
    logs = [log_of(gradients(2000 + extra)) for extra in (0, 1, 2)]
    evidence = job(*[replace(busy(r, after=[]), collectives=logs[r % 3]) for r in range(512)])
    started = time.process_time()

    assert alarms(evidence) == []
    assert time.process_time() - started < 1.5


def test_a_world_size_beyond_all_reason_is_survived() -> None:
    evidence = job(waiting(0), waiting(1), world_size=10**15)
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

    resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), before[1]))
    try:
        found = diagnose(evidence)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)

    assert all(len(finding.culprits) < 1000 for finding in found)


# -- any evidence -------------------------------------------------------------------------------------------------------------

MANY = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SEEDS = st.integers(0, 2**32)


@MANY
@given(SEEDS)
def test_any_evidence_gives_a_verdict_that_keeps_its_promises(seed: int) -> None:
    evidence = Chaos(seed).job()

    found = diagnose(evidence)

    for finding in found:
        culprits, innocent = {place.rank for place in finding.culprits}, {wait.rank for wait in finding.waiting}
        assert finding.code in CODES
        assert finding.certain or not finding.deadlock or finding.code in TELLS_NOT_WHO, (
            "who can never go on is proven, why it is so may not be"
        )
        assert finding.severity == "error" or not finding.deadlock
        assert culprits | innocent <= world_of(evidence) | {None}, "a rank that does not exist"
        assert not culprits & innocent, "guilty or innocent, not both"
        assert finding.summary and "\n" not in finding.summary and "None" not in finding.summary
        assert finding.next


@MANY
@given(SEEDS)
def test_the_order_in_which_ranks_were_seen_does_not_matter(seed: int) -> None:
    evidence = Chaos(seed).job()
    backwards = replace(evidence, ranks=dict(reversed(evidence.ranks.items())))

    assert [finding.code for finding in diagnose(backwards)] == [finding.code for finding in diagnose(evidence)]


@MANY
@given(SEEDS)
def test_findings_survive_their_way_through_json(seed: int) -> None:
    for finding in diagnose(Chaos(seed).job()):
        assert Finding.from_dict(json.loads(json.dumps(finding.to_dict()))) == finding


def world_of(evidence: JobEvidence) -> set[int]:
    sizes = [evidence.world_size or 0, *(init.world_size or 0 for e in evidence.ranks.values() for init in e.inits)]
    return {*range(max(sizes)), *evidence.ranks}
