"""Who left the common way where two ranks' histories part, told from what was usual, from the data and from the code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwise.diagnose.history import find_divergence
from rankwise.evidence.collective_log import CollectiveLog, Signature
from rankwise.evidence.records import Call, Caught, Ended, RankEvidence, Stack
from tests.diagnose.jobs import (
    NOW_NS,
    SECOND,
    did,
    elsewhere,
    ended,
    expect,
    gradients,
    helper,
    in_backward,
    in_forward,
    job,
    numbered,
    rank,
    root,
    stack_of,
    waiting,
    waiting_ranks,
)

STEP = [*did("broadcast", at="train.py:11 train", origin="forward", sizes=(64,)), *gradients()]


def test_a_skipped_backward_is_found_where_it_happened_and_not_where_it_hangs() -> None:
    """Without buffers nothing hangs until the epoch's end; the histories part at the skipped step."""
    step = [Call("forward", 0, 1, stack_of("train.py:11 train")), Call("backward", 2, 3, stack_of("train.py:12 train"))]
    evidence = job(_with_calls(waiting(0, "barrier", "train.py:20 main", sizes=()), [*step * 3, step[0], *step * 2]), _in_sixth(step))

    found = root(evidence)

    expect(found, "RW201", [0], "skipped the gradient all_reduce", "after the forward at train.py:11")
    assert waiting_ranks(found) == [1]


def _in_sixth(step: list[Call]) -> RankEvidence:
    return _with_calls(in_backward(1, after=gradients(5)), [*step * 5, step[0]])


def _with_calls(evidence: RankEvidence, before: list[Call]) -> RankEvidence:
    last = evidence.calls[-1]
    times = (
        replace(call, started_ns=NOW_NS - 60 * SECOND + i * 1000, ended_ns=NOW_NS - 60 * SECOND + i * 1000 + 500)
        for i, call in enumerate(before)
    )
    calls = (*times, last)
    return replace(evidence, calls=calls, counts={**evidence.counts, "forward": 1, "backward": 1})


def test_a_call_that_only_one_rank_made_shifts_the_pairs_and_is_still_found() -> None:
    source, lines = numbered("""\
def main(state):
    if state.is_main_process:
        dist.barrier()                  # <- surplus
    dist.barrier()                      # <- first
    dist.barrier()                      # <- second
    model = DDP(net)                    # <- ddp
""")
    at = {name: f"train.py:{line} main" for name, line in lines.items()}
    surplus, first = did("barrier", at=at["surplus"], sizes=()), did("barrier", at=at["first"], sizes=())
    second = did("barrier", at=at["second"], sizes=())
    evidence = job(
        waiting(0, "barrier", at["second"], after=[*surplus, *first], sizes=()),
        waiting(1, "all_gather", at["ddp"], after=[*first, *second], origin="ddp"),
        sources={"train.py": source},
    )

    expect(root(evidence), "RW208", [0], "only rank 0", "is_main_process", at=f"train.py:{lines['surplus']}")


@pytest.mark.parametrize(("surplus_of", "has_surplus"), [(0, True), (1, True), (0, False)])
def test_a_condition_that_the_other_ranks_answer_under_the_opposite_one_is_not_to_blame(surplus_of: int, has_surplus: bool) -> None:
    """`main_process_first` of the libraries: each rank has its own barrier there. The one that nobody answers was earlier."""
    source, lines = numbered(f"""\
@contextmanager
def main_first(rank):
    if rank != 0:
        dist.barrier()                  # <- others
    yield
    if rank == 0:
        dist.barrier()                  # <- main
def main(rank):
    if rank == {surplus_of} and has_surplus:
        dist.barrier()                  # <- surplus
    with main_first(rank):              # <- with
        load()
    dist.barrier()                      # <- last
    model = DDP(net)                    # <- ddp
""")
    at = {name: f"train.py:{line} main" for name, line in lines.items()}
    first = {name: [f"train.py:{lines[name]} main_first", at["with"]] for name in ("others", "main")}
    surplus = did("barrier", at=at["surplus"], sizes=()) if has_surplus else []
    first_calls = [did("barrier", at=first[name], sizes=()) for name in ("main", "others")]
    last, far = surplus_of, 1 - surplus_of
    evidence = job(
        waiting(last, "barrier", at["last"], after=[*surplus, *first_calls[last]], sizes=()),
        waiting(far, "all_gather", at["ddp"], after=[*first_calls[far], *did("barrier", at=at["last"], sizes=())], origin="ddp"),
        sources={"train.py": source},
    )

    found = root(evidence)

    if has_surplus:
        expect(found, "RW208", [last], f"only rank {last}", "calls that do not belong together", at=f"train.py:{lines['surplus']}")
    else:
        assert not found.certain or "main_first" not in found.why, found


def test_a_new_call_without_a_condition_is_a_suspicion_with_both_readings() -> None:
    evidence = job(waiting(0, "all_gather", "log.py:9 report", after=STEP * 5), in_forward(1, after=STEP * 5))

    found = root(evidence)

    expect(found, "RW208", [0], "Either the call is one rank's alone, or rank 1 left it out", certain=False)
    assert found.next[0].startswith("compare")


def test_of_three_ranks_the_one_with_the_new_call_is_certain() -> None:
    evidence = job(waiting(0, "all_gather", "log.py:9 report", after=STEP * 5), *[in_forward(r, after=STEP * 5) for r in (1, 2)])

    expect(root(evidence), "RW208", [0])


def _passes(evidence: RankEvidence, at: Stack, batches: int, *, is_over: bool) -> RankEvidence:
    start = Call("pass_start", NOW_NS - 90 * SECOND, NOW_NS - 90 * SECOND, at, peer=0)
    end = Call("pass_end", NOW_NS - 11 * SECOND, NOW_NS - 11 * SECOND, at, peer=batches)
    calls = (start, *evidence.calls[:-1], *([end] if is_over else []), evidence.calls[-1])
    counts = {**evidence.counts, "next_batch": batches, "pass_start": 1, "end_of_data": int(is_over)}
    return replace(evidence, calls=calls, counts=counts)


def test_uneven_data_is_said_only_where_the_loader_ended() -> None:
    loop = stack_of("train.py:9 train")
    short = _passes(waiting(1, "all_reduce", "metrics.py:4 reduce", after=STEP * 4), loop, 4, is_over=True)
    long = _passes(in_backward(0, after=[*STEP * 4, STEP[0]]), loop, 5, is_over=False)

    expect(root(job(long, short)), "RW213", [1], "its data ended after 4 batches", "at batch 5")


def test_a_rank_that_stops_with_even_data_left_the_loop_itself() -> None:
    source, lines = numbered("""\
def fit(loader):
    for epoch in range(9):
        for batch in loader:            # <- loop
            model(batch).backward()     # <- backward
        if patience.is_over:
            break                       # <- break
    dist.barrier()                      # <- barrier
""")
    at = {name: f"train.py:{line} fit" for name, line in lines.items()}
    step = gradients(at=at["backward"])
    stopped = _passes(waiting(1, "barrier", at["barrier"], after=step * 5, sizes=()), stack_of(at["loop"]), 5, is_over=True)
    going = _passes(in_backward(0, at["backward"], after=step * 5), stack_of(at["loop"]), 5, is_over=True)
    going = replace(going, counts={**going.counts, "next_batch": 6, "pass_start": 2})

    expect(root(job(going, stopped, sources={"train.py": source})), "RW219", [1], "patience.is_over", at=f"train.py:{lines['break']}")


def test_batches_of_a_rank_that_evaluates_alone_do_not_make_the_others_data_short() -> None:
    loop, own = stack_of("train.py:9 train"), stack_of("train.py:30 evaluate")
    trains_on = _passes(in_backward(1, after=[*STEP * 5, STEP[0]]), loop, 4, is_over=True)
    trains_on = replace(trains_on, counts={**trains_on.counts, "next_batch": 5, "pass_start": 2})
    evaluates = _passes(waiting(0, "all_gather", "train.py:33 evaluate", after=STEP * 5), loop, 4, is_over=False)
    second = Call("pass_start", NOW_NS - 11 * SECOND, NOW_NS - 11 * SECOND, own, peer=4)
    calls = (*evaluates.calls[:-1], second, evaluates.calls[-1])
    evaluates = replace(evaluates, calls=calls, counts={**evaluates.counts, "next_batch": 9, "pass_start": 2})

    expect(root(job(evaluates, trains_on)), "RW208", [0], "which no rank had called before", certain=False)


EPOCHS, MARKS = numbered("""\
def main(loader):
    if not args.train:
        return
    for epoch in range(9):
        for batch in loader:            # <- loop
            model(batch).backward()     # <- backward
        score = evaluate()              # <- evaluate
        if score > best:                # <- condition
            dist.broadcast(score, 0)    # <- broadcast
""")
METERS = "def sync(meters):\n    for meter in meters:\n        dist.barrier()\n"
AT = {name: f"train.py:{line} main" for name, line in MARKS.items()}
EPOCH = [*gradients(3, AT["backward"]), *did(at=AT["evaluate"])]


def test_a_call_under_a_condition_at_the_end_of_a_round_is_no_round_less_of_the_loop_before_it() -> None:
    best = waiting(0, "broadcast", AT["broadcast"], after=EPOCH)
    trains_on = in_backward(1, AT["backward"], after=EPOCH)

    found = root(job(best, trains_on, sources={"train.py": EPOCHS}))

    expect(found, "RW208", [0], "only rank 0 called broadcast", "only when `score > best`", certain=False, at=AT["condition"].split()[0])


def test_a_loop_that_was_never_begun_was_skipped_and_not_left() -> None:
    sources = {"train.py": EPOCHS.replace("dist.broadcast(score, 0)", "sync(meters)"), "metrics.py": METERS}
    meters = waiting(0, "barrier", ("metrics.py:3 sync", AT["broadcast"]), after=EPOCH, sizes=())
    trains_on = in_backward(1, AT["backward"], after=EPOCH)

    found = root(job(meters, trains_on, sources=sources))

    expect(found, "RW201", [1], "rank 1 skipped barrier", "only when `score > best`", certain=False, at=AT["condition"].split()[0])


def test_a_call_that_is_made_in_some_rounds_only_is_named_with_its_condition() -> None:
    """Both ranks made it before: their rounds may have differed, or what they make of the condition."""
    source, lines = numbered("""\
def main(batches):
    while step < last:
        for part in split(next(batches)):
            model(part).backward()      # <- backward
        if step % log_every == 0:       # <- condition
            dist.gather(loss)           # <- gather
        step += 1
""")
    at = {name: f"train.py:{line} main" for name, line in lines.items()}
    step, logged = gradients(2, at["backward"]), did("gather", at=at["gather"])
    past = [*step, *logged, *step * 3]
    evidence = job(waiting(0, "gather", at["gather"], after=past), in_backward(1, at["backward"], after=past), sources={"train.py": source})

    found = root(evidence)

    expect(
        found, "RW208", [0], "only when `step % log_every == 0`", "or it went fewer rounds", certain=False, at=at["condition"].split()[0]
    )


def test_an_exception_that_was_swallowed_around_a_loop_may_have_ended_it() -> None:
    source, lines = numbered("""\
def main(loader):
    try:
        for batch in loader:            # <- loop
            model(batch).backward()     # <- backward
    except KeyboardInterrupt:           # <- handler
        pass
""")
    at = {name: f"train.py:{line} main" for name, line in lines.items()}
    step = gradients(at=at["backward"])
    going = _passes(in_backward(0, at["backward"], after=step * 5), stack_of(at["loop"]), 6, is_over=False)
    stopped = ended(_passes(rank(1, step * 5), stack_of(at["loop"]), 5, is_over=False))

    found = root(job(going, stopped, sources={"train.py": source}))

    expect(found, "RW219", [1, 0], "catches an exception", certain=False, at=at["handler"].split()[0])
    assert "ends when" not in found.why, "its data did not end"


def test_conditions_of_a_library_on_the_other_ranks_way_do_not_hide_one_of_the_users_own() -> None:
    library = "/home/ada/venv/lib/python3.11/site-packages/trainer/loop.py"
    source = "def training_step(batch):\n    if batch.sum() > 0:\n        dist.all_gather(out, batch)\n"
    loop = "def backward(loss):\n    if self.automatic:\n        loss.backward()\n"
    before = did(times=5, at="train.py:9 log")
    evidence = job(
        waiting(0, "all_gather", "train.py:3 training_step", after=before),
        in_backward(1, f"{library}:3 backward", after=before),
        sources={"train.py": source, library: loop},
    )

    expect(root(evidence), "RW208", [0], "only when `batch.sum() > 0`", certain=False, at="train.py:2")


def test_rw220_gradient_sync_was_off_on_one_rank() -> None:
    """Both ran as many forwards and backwards; one of them made one reduction less, and its forward says why."""
    forward, backward = Call("forward", 0, 1, stack_of("train.py:11 train")), Call("backward", 2, 3, stack_of("train.py:12 train"))
    off = replace(forward, reduce_op="no_sync")
    source = "def begin(model, tokens):\n    model.require_backward_grad_sync = tokens >= budget\n"
    evidence = job(
        _with_calls(in_backward(0, after=gradients(4)), [forward, backward] * 4 + [forward]),
        _with_calls(
            waiting(1, "all_gather", "train.py:20 main", after=gradients(4)),
            [forward, backward] * 2 + [off, backward] + [forward, backward] * 2,
        ),
        sources={"train.py": source},
    )

    expect(root(evidence), "RW220", [1], "gradient sync", "no_sync", at="train.py:2")


def test_rw221_other_numbers_of_rounds_without_a_loader_name_both() -> None:
    source, lines = numbered("""\
def reduce_all(meters):
    for meter in meters.values():       # <- loop
        dist.barrier()                  # <- meter
def main():
    reduce_all(meters)                  # <- call
    dist.all_reduce(total)              # <- total
""")
    meter = [f"train.py:{lines['meter']} reduce_all", f"train.py:{lines['call']} main"]
    done = did("barrier", 3, at=meter, sizes=())
    evidence = job(
        waiting(0, "barrier", meter, after=done, sizes=()),
        waiting(1, "all_reduce", f"train.py:{lines['total']} main", after=done),
        sources={"train.py": source},
    )

    expect(root(evidence), "RW221", [0, 1], "different numbers of rounds", "meters.values()", certain=False)


def test_a_collective_of_a_helper_thread_is_told_as_one() -> None:
    beside = waiting(0, "all_reduce", ["logger.py:7 report", "logger.py:3 run"], after=STEP * 5, sizes=(1,))
    beside = replace(beside, calls=(*beside.calls[:-1], replace(beside.calls[-1], by_helper=True)))

    found = root(job(beside, in_backward(1, after=STEP * 5)))

    expect(found, "RW208", [0], "helper thread")


def test_rw316_the_same_exception_again_and_again() -> None:
    stuck = elsewhere(
        1, "feed.py:50 __iter__", caught=(Caught("CorruptRecord", "utterance 173 has no frames", 8, NOW_NS, stack_of("feed.py:24 get")),)
    )

    expect(root(job(waiting(0), stuck)), "RW316", [1], "CorruptRecord", "again", certain=False, deadlock=False, at="feed.py:24")


@pytest.mark.parametrize("signal", [6, 11])  # while abort() takes the process down, another of its threads may crash first
def test_rw410_names_the_rank_that_nccls_watchdog_waited_for(signal: int) -> None:
    said = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=11, OpType=ALLREDUCE) ran for 20022 milliseconds"
    aborted = replace(ended(waiting(0, backend="nccl"), "signal", signal=signal, said=said), calls=waiting(0).calls)
    busy = elsewhere(1, "index.py:29 rebuild", helpers=(helper(7, 4201),))

    found = root(job(aborted, busy, exit_code=1))

    expect(found, "RW410", [1], "rank 1 did not arrive", "rebuild", deadlock=False, at="index.py:29")


def test_a_call_in_an_except_block_is_made_by_those_who_came_there() -> None:
    source, lines = numbered("""\
def main():
    try:
        optimizer.load_state_dict(saved)
    except ValueError:
        dist.barrier()                  # <- alone
    model(x)                            # <- forward
""")
    evidence = job(
        in_forward(0, f"train.py:{lines['forward']} main", after=[]),
        waiting(1, "barrier", f"train.py:{lines['alone']} main", after=[], sizes=()),
        sources={"train.py": source},
    )

    expect(root(evidence), "RW208", [1], "except block", at=f"train.py:{lines['alone']}")


def test_a_round_without_its_backward_is_found_in_the_first_round() -> None:
    source, lines = numbered("""\
def train():
    for x in data:
        loss = mean(model(x))           # <- reduce
        if x.abs().max() == 0:
            continue                    # <- skip
        loss.backward()                 # <- backward
""")
    at = {name: f"train.py:{line} train" for name, line in lines.items()}
    first = did("all_reduce", at=at["reduce"])
    evidence = job(
        waiting(0, "all_reduce", at["reduce"], after=first),
        in_backward(1, at["backward"], after=first),
        sources={"train.py": source},
    )

    expect(root(evidence), "RW201", [0], "came to the same line again", at=f"train.py:{lines['skip']}")


def test_a_condition_of_one_side_is_a_suspicion() -> None:
    source, lines = numbered("""\
def main():
    dist.all_reduce(loss)               # <- both
    if loss < best:
        dist.gather_object(state)       # <- save
    dist.all_gather(x)                  # <- next
""")
    at = {name: f"train.py:{line} main" for name, line in lines.items()}
    both = did("all_reduce", at=at["both"])
    evidence = job(
        waiting(0, "gather_object", at["save"], after=both),
        waiting(1, "all_gather", at["next"], after=both),
        sources={"train.py": source},
    )

    found = root(evidence)

    assert (found.certain, found.deadlock) == (False, True)
    assert "compare" in found.next[0]


def test_an_evaluation_without_collectives_is_no_parting() -> None:
    """Rank 0 alone evaluates, without gradients and buffers; what hangs is the end of rank 1's data."""
    forward, backward = "train.py:11 train", "train.py:12 train"

    def step(i: int) -> list[Call]:
        start = NOW_NS - 90 * SECOND + 2 * i * SECOND
        return [
            Call("forward", start, start + SECOND // 2, stack_of(forward)),
            Call("backward", start + SECOND // 2, start + SECOND, stack_of(backward)),
        ]

    alone = NOW_NS - 90 * SECOND + 3 * SECOND
    evaluation = Call("forward", alone, alone + SECOND // 2, stack_of("train.py:30 evaluate"), reduce_op="no_grad+eval")
    with_evaluation, without = [*step(0), *step(1), evaluation, *step(2)], [*step(0), *step(1), *step(2)]
    log = CollectiveLog()
    for seq, time_s in enumerate((0.6, 2.6, 4.6), 1):
        log.add(seq, Signature("0", "all_reduce", (8,)), NOW_NS - 90 * SECOND + int(time_s * SECOND), True, None, "backward")
    mine = replace(rank(0), calls=tuple(with_evaluation), collectives=log)
    theirs = replace(rank(1), calls=tuple(without), collectives=log, ended=Ended("finished", NOW_NS, 0), alive=False)

    assert find_divergence(job(mine, theirs), 0, 1) is None
    plain = replace(evaluation, reduce_op="")
    assert find_divergence(job(replace(mine, calls=(*with_evaluation[:4], plain, *with_evaluation[5:])), theirs), 0, 1) is not None
