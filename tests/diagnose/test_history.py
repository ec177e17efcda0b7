"""Two ranks' calls laid side by side: where they part, what was usual, and what does not count."""

from __future__ import annotations

from array import array
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.diagnose.divergence import blame_for_divergence
from rankwise.diagnose.history import find_divergence, has_unusual_step, history_of, times_followed
from rankwise.evidence.flight import log_from_calls
from rankwise.evidence.records import Call, JobEvidence
from rankwise.source.book import SourceBook
from tests.diagnose.jobs import NOW_NS, SECOND, did, ended, job, log_of, model, new_group, rank, root, stack_of, waiting
from tests.diagnose.jobs import Slot as S
from tests.diagnose.simulation import start

LIBRARY = "/home/ada/venv/lib/python3.11/site-packages/launcher/groups.py"


def calls(text: str, *, open_last: bool = False) -> tuple[Call, ...]:
    """One call per letter, each letter a line of its own."""
    made = []
    for i, letter in enumerate(text):
        began = NOW_NS - 100 * SECOND + i * 1000
        made.append(Call("all_reduce", began, began + 500, stack_of(f"train.py:{ord(letter)} main")))
    return (*made[:-1], replace(made[-1], ended_ns=0)) if open_last else tuple(made)


def two(mine: str, other: str, **facts: int) -> JobEvidence:
    return job(*[replace(rank(r, []), calls=calls(text, open_last=True), **facts) for r, text in enumerate((mine, other))])


def diverged(mine: str, other: str) -> tuple[str, str] | None:
    found = find_divergence(two(mine, other), 0, 1)
    return None if found is None else tuple(chr(c.stack[0].line) if c else "" for c in (found.next, found.next_other))  # type: ignore[return-value]


def test_a_rank_that_is_only_further_has_not_parted() -> None:
    assert diverged("abcabc", "abcab") is None
    assert diverged("abc", "abc") is None


def test_the_earliest_difference_counts_though_the_rest_is_alike() -> None:
    assert diverged("abcabcabcabx", "abcacabcabcx") == ("b", "c")  # the second lacks a `b` in its second round


def test_the_same_call_from_another_line_is_a_twin() -> None:
    assert diverged("abTcabTcab", "abUcabUcab") is None


def test_a_call_too_many_is_not_paired_with_the_next_one_that_both_make() -> None:
    """Rank 0 computes a metric `m` (four collectives) that rank 1 does not, then both the metric `n`: rank 0 is a metric behind."""
    assert diverged("abmmmmn", "abnnnncd") == ("m", "n")


def test_a_player_and_its_trainer_are_told_by_no_condition_on_the_rank() -> None:
    """Each has lines and a loop of its own, all under conditions on the rank. Rank 1 leaves out the call in which rank 0 waits for it."""
    ops = {"a": "scatter", "b": "gather_object", "c": "broadcast", "n": "scatter", "o": "gather_object", "p": "broadcast", "x": "barrier"}
    source = "\n".join(f"if rank == {int(chr(line) > 'm')}: call()" for line in range(1, 130))
    made = [tuple(replace(c, op=ops[chr(c.stack[0].line)]) for c in calls(text, open_last=True)) for text in ("abcabcab", "nopxnopxnpxn")]
    own = tuple(replace(call, group="1") if call.op == "barrier" else call for call in made[1])
    own = tuple(replace(call, stack=stack_of(f"train.py:{call.stack[0].line} trainer")) for call in own)
    ranks = [replace(rank(r, []), calls=told, groups=(new_group(1, 2, name="1"),)) for r, told in enumerate((made[0], own))]
    evidence = job(*ranks, sources={"train.py": source})

    found = find_divergence(evidence, 0, 1)

    assert found is not None and found.is_of_roles
    assert [chr(c.stack[0].line) for c in (found.next, found.next_other) if c is not None] == ["b", "p"]
    assert blame_for_divergence(evidence, SourceBook.of_job(evidence), found, [0], [1]) is None


def test_a_call_from_the_same_line_by_another_way_is_a_nearer_twin() -> None:
    """`with first_rank():` has a barrier at its begin on one rank and at its end on the other, which belong together."""
    enter, leave = (stack_of((f"{LIBRARY}:{line} first_rank", "train.py:5 load")) for line in (10, 20))
    own, ddp = stack_of("train.py:6 load"), stack_of("train.py:9 main")
    made = [[("barrier", own), ("barrier", leave)], [("barrier", enter), ("ddp", ddp)]]
    began, over = (NOW_NS, NOW_NS + 1000), (NOW_NS + 500, 0)
    ranks = [
        replace(rank(r, []), calls=tuple(Call(op, began[i], over[i], at) for i, (op, at) in enumerate(one))) for r, one in enumerate(made)
    ]

    found = find_divergence(job(*ranks), 0, 1)

    assert found is not None and found.mine.rank == 0 and found.next is not None
    assert (found.next.stack, found.is_in_step_again) == (own, True)


def test_differences_that_were_evened_out_are_past() -> None:
    assert diverged("abXcabYcabP", "abcXabYcabQ") == ("P", "Q")


def test_evaluations_of_one_rank_that_called_no_collective_are_not_where_ranks_part() -> None:
    own = "E" * 50  # more than two ranks may be apart

    found = find_divergence(with_evaluations(f"{own}abcd{own}abcdabcd", "abcdabcd"), 0, 1)

    assert found is not None and found.next is not None
    assert (found.next.op, found.at, found.next_other) == ("all_reduce", 8, None)


def with_evaluations(mine: str, other: str) -> JobEvidence:
    """Two ranks, of which the second has ended; an `E` is a forward of an evaluation, without a collective in torch's own record."""
    made = []
    for r, text in enumerate((mine, other)):
        told = tuple(replace(c, op="forward", reduce_op="no_grad+eval") if t == "E" else c for t, c in zip(text, calls(text), strict=True))
        first, *rest = [c.started_ns for c in told if c.op != "forward"]
        log = log_of(did(times=len(rest) + 1))
        log.created_ns[:] = array("Q", [min(first, told[0].started_ns - 1), *rest])
        made.append(replace(rank(r, []), calls=told, collectives=log))
    return job(made[0], ended(made[1]))


def test_evaluations_without_buffers_are_quiet_though_torchs_record_died_with_the_rank() -> None:
    told = with_evaluations("abEEcd", "abcd")
    dead = replace(told.ranks[0], collectives=log_from_calls(told.ranks[0].calls), models=(model(),))
    again = replace(told, ranks={**told.ranks, 0: dead})
    with_buffers = replace(dead, models=(replace(model(), has_buffers=True),))

    assert find_divergence(again, 0, 1) is None
    assert find_divergence(replace(again, ranks={**told.ranks, 0: with_buffers}), 0, 1) is not None


def test_what_an_evaluation_broadcast_is_left_out_in_the_next_training_forward() -> None:
    told = with_evaluations("abEEcdabc", "abcdabc")
    calls_of = {r: tuple(replace(c, op="forward") if c.stack[0].line == ord("c") else c for c in e.calls) for r, e in told.ranks.items()}
    with_buffers = {
        r: replace(e, calls=calls_of[r], collectives=log_from_calls(e.calls), models=(replace(model(), has_buffers=True),))
        for r, e in told.ranks.items()
    }
    evaluates = replace(with_buffers[0], calls=with_buffers[0].calls[:4])
    has_gone = replace(with_buffers[1], calls=with_buffers[1].calls[:2])

    assert find_divergence(replace(told, ranks=with_buffers), 0, 1) is None
    assert find_divergence(replace(told, ranks={**with_buffers, 0: evaluates}), 0, 1) is None  # rank 1's forward answers it
    assert find_divergence(replace(told, ranks={0: evaluates, 1: has_gone}), 0, 1) is not None


def test_rows_of_a_mesh_are_in_step_in_groups_of_their_own() -> None:
    """Ranks 0 and 1 of one tensor-parallel group, 2 and 3 of the other; 0 and 2 share the third group, of data parallelism."""
    groups = (new_group(0, 1, name="1"), new_group(2, 3, name="2"), new_group(0, 2, name="3"))
    mine, theirs = (["1", "1", "3"] * 3, ["2", "2", "3"] * 3)
    steps = [
        replace(rank(r, []), groups=groups, calls=tuple(replace(c, group=g) for c, g in zip(calls("ttg" * 3), names, strict=True)))
        for r, names in ((0, mine), (2, theirs))
    ]
    extra = replace(steps[0], calls=(*steps[0].calls[:6], *[replace(c, group="3") for c in calls("x")], *steps[0].calls[6:]))

    assert find_divergence(job(*steps), 0, 2, "3") is None
    found = find_divergence(job(extra, ended(steps[1])), 0, 2, "3")
    assert found is not None and found.next is not None and found.next.stack == calls("x")[0].stack


def test_calls_that_left_the_ring_are_left_out_on_both_sides() -> None:
    evidence = two("abcabc", "cabc")
    shorter = replace(evidence.ranks[1], num_forgotten=2)

    assert find_divergence(replace(evidence, ranks={**evidence.ranks, 1: shorter}), 0, 1) is None


def test_rows_of_the_same_call_are_told_apart_by_their_length() -> None:
    found = find_divergence(two("ggbggbggb", "ggbggbggg"), 0, 1)
    assert found is not None

    assert times_followed(found, found.before, found.next) == 4
    assert times_followed(found, found.before, found.next_other) == 0


def test_a_step_never_taken_before_is_unusual() -> None:
    assert has_unusual_step(replace(rank(0, []), calls=calls("abcabcabcac")))
    assert not has_unusual_step(replace(rank(0, []), calls=calls("abcabcabcab")))


def test_calls_that_another_call_makes_do_not_count() -> None:
    outer = Call("all_gather_object", NOW_NS, NOW_NS + 100, stack_of("train.py:5 main"))
    inner = Call("all_gather", NOW_NS + 10, NOW_NS + 20, stack_of("train.py:5 main"))

    assert [call.op for call in history_of(replace(rank(0, []), calls=(outer, inner))).calls] == ["all_gather_object"]


# -- generated jobs, one mutation each: whoever is named for certain is the one ------------------------------------------------

OPS = ["all_reduce", "barrier", "all_gather"]


@st.composite
def mutated_jobs(draw) -> tuple[JobEvidence, int, str]:
    """Rounds of the same collectives on every rank and in up to two groups; one rank differs once."""
    world_size, rounds = draw(st.integers(2, 4)), draw(st.integers(2, 6))
    groups = {"1": tuple(range(world_size))} if draw(st.booleans()) else {}
    one = [
        S(draw(st.sampled_from(OPS)), at=f"train.py:{10 + i} main", group=draw(st.sampled_from(["0", *groups])))
        for i in range(draw(st.integers(1, 5)))
    ]
    final = [S("barrier", at="train.py:90 main", sizes=())]
    programs = [[*one * rounds, *final] for _ in range(world_size)]
    guilty = draw(st.integers(0, world_size - 1))
    kind = draw(st.sampled_from(["skip", "extra", "swap", "early end", "other size"]))
    at = draw(st.integers(0, len(one) * rounds - 1))
    mine = programs[guilty]
    if kind == "skip":
        del mine[at]
    elif kind == "extra":
        mine.insert(at, S("all_reduce", at="extra.py:5 log", sizes=(3,)))
    elif kind == "swap":
        mine[at], mine[at + 1] = mine[at + 1], mine[at]
    elif kind == "early end":
        del mine[at : len(one) * rounds]
    else:
        mine[at] = replace(mine[at], sizes=(77,))
    running = start(programs, groups)
    running.run()
    return running.evidence(), guilty, kind


@settings(max_examples=300, deadline=None)
@given(mutated_jobs())
def test_whoever_is_named_for_certain_is_the_one_that_was_mutated(story: tuple[JobEvidence, int, str]) -> None:
    evidence, guilty, kind = story
    if all(not e.alive for e in evidence.ranks.values()) and kind != "other size":
        return  # it went through: nobody waits
    found = _root_or_none(evidence)
    if found is None or not found.certain:
        return
    named = {place.rank for place in found.culprits}

    assert named == {guilty} or (guilty in named and found.code in ("RW204", "RW218")), (kind, found)


def _root_or_none(evidence: JobEvidence):
    from rankwise.diagnose import diagnose

    return next(iter(diagnose(evidence)), None)


def test_a_wait_without_a_difference_is_no_parting() -> None:
    evidence = job(waiting(0), waiting(1))

    assert find_divergence(evidence, 0, 1) is None
    assert root(job(waiting(0), rank(1))) is not None
