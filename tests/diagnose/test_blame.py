"""Who is to blame for a disagreement: the rank that skipped, went alone, stopped early or ran out of data, and the line."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from rankwise.diagnose.decide import diagnose
from rankwise.evidence.records import Call, RankEvidence
from tests.diagnose.jobs import (
    SECOND,
    cast,
    did,
    echo,
    expect,
    finished,
    gradients,
    in_backward,
    in_forward,
    job,
    killed,
    numbered,
    others,
    rank,
    root,
    stack_of,
    terminated,
    waiting,
    waiting_ranks,
)

WORLDS = [2, 3, 4, 8]
PLACES = [(4, [0]), (4, [3]), (4, [1]), (8, [0, 5]), (8, [7]), (3, [1])]  # world size, culprits


# -- RW201: a collective skipped ----------------------------------------------------------------------------------------------

CONTINUE, LINES = numbered("""\
def train(loader):
    for batch in loader:
        loss = model(batch)
        if not loss.isfinite():
            continue                    # <- continue
        loss.backward()                 # <- backward
    dist.barrier()                      # <- barrier
""")


@pytest.mark.parametrize(("world_size", "culprits"), PLACES)
def test_rw201_a_continue_skipped_the_gradients_of_some_ranks(world_size: int, culprits: list[int]) -> None:
    evidence = job(
        *cast(
            culprits,
            world_size,
            lambda r: waiting(r, "barrier", f"train.py:{LINES['barrier']} train", after=gradients(5), sizes=(), counts={"next_batch": 9}),
            lambda r: in_backward(r, f"train.py:{LINES['backward']} train", counts={"next_batch": 9}),
        ),
        sources={"train.py": CONTINUE},
    )

    found = root(evidence)

    expect(found, "RW201", culprits, "skipped", "all_reduce", "barrier", at=f"train.py:{LINES['continue']}")
    assert sorted(waiting_ranks(found)) == others(culprits, world_size)
    assert "continue" in found.why


EXCEPT, EXCEPT_LINES = numbered("""\
def train(loader):
    for batch in loader:
        try:
            total = step(batch)
            dist.all_reduce(total)      # <- reduce
        except ValueError:              # <- except
            print("bad batch")
    dist.barrier()                      # <- barrier
""")


def test_rw201_an_exception_handler_skipped_it() -> None:
    evidence = job(
        *cast(
            [2],
            4,
            lambda r: waiting(r, "barrier", f"train.py:{EXCEPT_LINES['barrier']} train", sizes=(), counts={"next_batch": 6}),
            lambda r: waiting(r, "all_reduce", f"train.py:{EXCEPT_LINES['reduce']} train", counts={"next_batch": 6}),
        ),
        sources={"train.py": EXCEPT},
    )

    found = root(evidence)

    expect(found, "RW201", [2], "rank 2", "all_reduce", at=f"train.py:{EXCEPT_LINES['except']}")
    assert "except" in found.why


TWINS, TWIN_LINES = numbered("""\
def sync(rank):
    if rank == 0:
        dist.broadcast(x, src=0)        # <- sender
    else:
        if not ready:
            return                      # <- return
        dist.broadcast(x, src=0)        # <- receiver
    return

def main(rank):
    sync(rank)                          # <- sync
    dist.barrier()                      # <- barrier
""")


def test_rw201_blames_the_rank_that_returned_before_its_own_half_of_the_call() -> None:
    sync, barrier = f"train.py:{TWIN_LINES['sync']} main", f"train.py:{TWIN_LINES['barrier']} main"
    evidence = job(
        waiting(0, "broadcast", [f"train.py:{TWIN_LINES['sender']} sync", sync], peer=0),
        waiting(1, "barrier", barrier, sizes=()),
        waiting(2, "barrier", barrier, sizes=()),
        sources={"train.py": TWINS},
    )

    expect(root(evidence), "RW201", [1, 2], "skipped", "broadcast", at=f"train.py:{TWIN_LINES['return']}")


EARLY, EARLY_LINES = numbered("""\
def evaluate(data):
    if not data:
        return 0.0                      # <- return
    total = score(data)
    dist.all_reduce(total)              # <- reduce
    return total

def main():
    for epoch in range(9):
        train()
        evaluate(shard)                 # <- evaluate
        dist.barrier()                  # <- barrier
""")


@pytest.mark.parametrize(("world_size", "culprits"), [(3, [1]), (4, [0]), (4, [3])])
def test_rw201_an_early_return_skipped_it(world_size: int, culprits: list[int]) -> None:
    evaluate = f"train.py:{EARLY_LINES['evaluate']} main"
    evidence = job(
        *cast(
            culprits,
            world_size,
            lambda r: waiting(r, "barrier", f"train.py:{EARLY_LINES['barrier']} main", sizes=()),
            lambda r: waiting(r, "all_reduce", [f"train.py:{EARLY_LINES['reduce']} evaluate", evaluate]),
        ),
        sources={"train.py": EARLY},
    )

    found = root(evidence)

    expect(found, "RW201", culprits, "all_reduce", "barrier", at=f"train.py:{EARLY_LINES['return']}")
    assert "return" in found.why


@pytest.mark.parametrize("world_size", WORLDS)
def test_rw201_a_forward_without_its_backward(world_size: int) -> None:
    step = [*did("broadcast", at="train.py:11 train", origin="forward", sizes=(64,)), *gradients()]
    evidence = job(
        in_forward(0, after=[*step * 5, step[0]]),
        *[in_backward(r, after=[*step * 5, step[0]]) for r in range(1, world_size)],
    )

    found = root(evidence)

    expect(found, "RW201", [0], "skipped", "gradient", "5 times" if world_size < 2 else "times before")
    assert sorted(waiting_ranks(found)) == list(range(1, world_size))


# -- RW202, RW203: other collectives, another order ---------------------------------------------------------------------------


def test_rw202_two_ranks_without_any_hint_who_deviates_are_both_named() -> None:
    evidence = job(waiting(0, "all_reduce", "a.py:3 f"), waiting(1, "broadcast", "b.py:4 g"))

    found = root(evidence)

    expect(found, "RW202", [0, 1], "different collectives", "all_reduce", "broadcast", certain=False)
    assert {(place.file, place.line) for place in found.culprits} == {("a.py", 3), ("b.py", 4)}


def test_rw202_three_ranks_in_three_collectives() -> None:
    evidence = job(waiting(0, "all_reduce", "a.py:3 f"), waiting(1, "broadcast", "b.py:4 g"), waiting(2, "barrier", "c.py:5 h"))

    expect(root(evidence), "RW202", [0, 1, 2], "all_reduce", "broadcast", "barrier", certain=False)


@pytest.mark.parametrize(("world_size", "culprits"), PLACES)
def test_rw202_the_few_that_call_something_else(world_size: int, culprits: list[int]) -> None:
    evidence = job(
        *cast(
            culprits,
            world_size,
            lambda r: waiting(r, "all_reduce", ["callbacks.py:14 on_step", "train.py:10 main"]),
            lambda r: waiting(r, "broadcast", ["callbacks.py:7 on_step", "train.py:10 main"], peer=0),
        )
    )

    found = root(evidence)

    expect(found, "RW202", culprits, "different", "broadcast", "all_reduce", at="callbacks.py:14")
    assert sorted(waiting_ranks(found)) == others(culprits, world_size)


def test_rw203_of_two_ranks_the_one_that_took_the_branch() -> None:
    source, lines = numbered("""\
def main(rank):
    names = ["loss", "accuracy"]
    if rank == 1:                       # <- if
        names.reverse()
    for name in names:
        reduce_metric(name)             # <- reduce
""")
    at = f"train.py:{lines['reduce']} main"
    evidence = job(
        waiting(0, "all_reduce", ["metrics.py:4 loss", at]),
        waiting(1, "all_gather", ["metrics.py:9 accuracy", at]),
        sources={"train.py": source},
    )

    found = root(evidence)

    expect(found, "RW203", [1], "order", certain=False)
    assert f"train.py:{lines['if']}" in found.why


def test_rw202_an_even_split_names_both_sides() -> None:
    evidence = job(*[waiting(r, "all_reduce", "a.py:3 f") if r < 4 else waiting(r, "barrier", "b.py:4 g", sizes=()) for r in range(8)])

    expect(root(evidence), "RW202", list(range(8)), "ranks 0-3", "ranks 4-7", certain=False)


# -- RW208, RW209: some ranks only --------------------------------------------------------------------------------------------

BRANCH, BRANCH_LINES = numbered("""\
def main(rank):
    for step in range(100):
        loss.backward()                 # <- backward
        if rank == 0:
            save()
            dist.barrier()              # <- barrier
""")


@pytest.mark.parametrize("world_size", WORLDS)
def test_rw208_a_barrier_under_a_condition_on_the_rank(world_size: int) -> None:
    evidence = job(
        waiting(0, "barrier", f"train.py:{BRANCH_LINES['barrier']} main", after=gradients(5), sizes=()),
        *[in_backward(r, f"train.py:{BRANCH_LINES['backward']} main") for r in range(1, world_size)],
        sources={"train.py": BRANCH},
    )

    found = root(evidence)

    expect(found, "RW208", [0], "only rank 0", "barrier", "all_reduce", at=f"train.py:{BRANCH_LINES['barrier']}")
    assert "rank == 0" in found.why
    assert sorted(waiting_ranks(found)) == list(range(1, world_size))


@pytest.mark.parametrize(
    ("condition", "culprits"), [("rank == world_size - 1", [3]), ("rank % 2", [1, 3]), ("rank in (1, 2)", [1, 2]), ("rank", [1, 2, 3])]
)
def test_rw208_blames_all_ranks_the_condition_lets_in(condition: str, culprits: list[int]) -> None:
    source = f"def main(rank, world_size):\n    if {condition}:\n        dist.barrier()\n    dist.all_reduce(x)\n"
    evidence = job(
        *cast(
            culprits, 4, lambda r: waiting(r, "barrier", "train.py:3 main", sizes=()), lambda r: waiting(r, "all_reduce", "train.py:4 main")
        ),
        sources={"train.py": source},
    )

    expect(root(evidence), "RW208", culprits, "only", "barrier", at="train.py:3")


@pytest.mark.parametrize("recorder", [True, False])
def test_rw208_the_others_have_finished_and_left(recorder: bool) -> None:
    source = "def main(rank):\n    train()\n    if rank == 0:\n        dist.barrier()\n"
    evidence = job(
        waiting(0, "barrier", "train.py:4 main", sizes=(), recorder=recorder),
        finished(1, recorder=recorder),
        finished(2, recorder=recorder),
        sources={"train.py": source},
    )

    expect(root(evidence), "RW208", [0], "only rank 0", "barrier", at="train.py:4")


def test_rw208_comes_before_a_crash_after_the_others_scripts_end() -> None:
    source = "def main(rank):\n    train()\n    if rank == 0:\n        dist.barrier()\n"
    waits, crashed = waiting(0, "barrier", "train.py:4 main", sizes=()), killed(rank(1), signal.SIGABRT, code=0)

    found = diagnose(job(waits, crashed, sources={"train.py": source}))

    assert [finding.code for finding in found][:2] == ["RW208", "RW405"]
    assert root(job(waits, killed(rank(1), signal.SIGABRT), sources={"train.py": source})).code == "RW405"


def test_rw208_on_every_node_when_the_condition_is_on_the_local_rank() -> None:
    source = "def main(local_rank):\n    if local_rank == 0:\n        dist.barrier()\n    dist.all_reduce(x)\n"
    ranks = cast(
        [0, 2], 4, lambda r: waiting(r, "barrier", "train.py:3 main", sizes=()), lambda r: waiting(r, "all_reduce", "train.py:4 main")
    )
    nodes = [
        replace(e, host=f"node-{r // 2}", env={"RANK": str(r), "LOCAL_RANK": str(r % 2), "WORLD_SIZE": "4"}) for r, e in enumerate(ranks)
    ]

    expect(root(job(*nodes, sources={"train.py": source})), "RW208", [0, 2], "barrier")


EVALUATION, EVALUATION_LINES = numbered("""\
def main(rank):
    for step in range(100):
        loss = model(x)
        loss.backward()                 # <- backward
        if rank == 0:
            evaluate(model)             # <- evaluate

def evaluate(model):
    model(batch)                        # <- forward
""")


@pytest.mark.parametrize("world_size", WORLDS)
def test_rw209_evaluation_through_the_wrapper_on_rank_zero(world_size: int) -> None:
    stack = [f"train.py:{EVALUATION_LINES['forward']} evaluate", f"train.py:{EVALUATION_LINES['evaluate']} main"]
    evidence = job(
        in_forward(0, stack),
        *[in_backward(r, f"train.py:{EVALUATION_LINES['backward']} main") for r in range(1, world_size)],
        sources={"train.py": EVALUATION},
    )

    found = root(evidence)

    expect(found, "RW209", [0], "forward", "DDP", at=f"train.py:{EVALUATION_LINES['forward']}")
    assert "rank == 0" in found.why


def test_rw209_has_no_twin_in_a_broadcast_of_the_users_own() -> None:
    source = "def main():\n    if rank == 0:\n        model(x)\n    if rank == 1:\n        dist.broadcast(y, 1)\n    loss.backward()\n"
    evidence = job(in_forward(0, ["train.py:3 main"]), in_backward(1, "train.py:6 main"), sources={"train.py": source})

    expect(root(evidence), "RW209", [0], "forward", "DDP", at="train.py:3")


def test_rw209_by_its_counts_when_the_source_is_not_there() -> None:
    evidence = job(
        in_forward(0, ["eval.py:9 evaluate", "train.py:6 main"], counts={"forward": 9, "backward": 5}),
        in_backward(1, counts={"forward": 6, "backward": 6}),
        in_backward(2, counts={"forward": 6, "backward": 6}),
    )

    expect(root(evidence), "RW209", [0], "forward", "DDP")


# -- RW213, RW219: other numbers of rounds ------------------------------------------------------------------------------------

UNEVEN, UNEVEN_LINES = numbered("""\
def main(loader):
    for batch in loader:                # <- loop
        loss = model(batch)
        loss.backward()                 # <- backward
    dist.barrier()                      # <- barrier
""")


@pytest.mark.parametrize(("world_size", "culprits"), PLACES)
def test_rw213_some_ranks_ran_out_of_batches(world_size: int, culprits: list[int]) -> None:
    evidence = job(
        *cast(
            culprits,
            world_size,
            lambda r: waiting(
                r,
                "barrier",
                f"train.py:{UNEVEN_LINES['barrier']} main",
                after=gradients(5),
                sizes=(),
                counts={"next_batch": 5, "end_of_data": 1},
            ),
            lambda r: in_backward(r, f"train.py:{UNEVEN_LINES['backward']} main", counts={"next_batch": 6}),
        ),
        sources={"train.py": UNEVEN},
    )

    found = root(evidence)

    expect(found, "RW213", culprits, "fewer batches", at=f"train.py:{UNEVEN_LINES['barrier']}")
    assert sorted(waiting_ranks(found)) == others(culprits, world_size)


@pytest.mark.parametrize("recorder", [True, False])
@pytest.mark.parametrize("culprits", [[0], [1], [3], [1, 2]])
def test_rw213_the_short_rank_has_left_the_job(culprits: list[int], recorder: bool) -> None:
    evidence = job(
        *cast(
            culprits,
            4,
            lambda r: finished(r, gradients(5), counts={"next_batch": 5, "end_of_data": 1}, recorder=recorder),
            lambda r: in_backward(r, counts={"next_batch": 6}, recorder=recorder),
        )
    )

    expect(root(evidence), "RW213", culprits, "5 batches", "6")


def test_rw213_and_the_others_have_lost_their_connection() -> None:
    evidence = job(
        finished(0, gradients(5), counts={"next_batch": 5, "end_of_data": 1}),
        echo(in_backward(1, counts={"next_batch": 6})),
        terminated(in_backward(2, counts={"next_batch": 6})),
        exit_code=1,
    )

    found = root(evidence)

    assert (found.code, [place.rank for place in found.culprits]) == ("RW213", [0])


STOP, STOP_LINES = numbered("""\
def main(loader):
    for epoch in range(50):
        for batch in loader:
            loss = model(batch)
            loss.backward()             # <- backward
        if val_loss > best:
            break                       # <- break
    dist.barrier()                      # <- barrier
""")


@pytest.mark.parametrize("culprits", [[0], [1], [3], [0, 2]])
def test_rw219_some_ranks_stopped_by_their_own_decision(culprits: list[int]) -> None:
    evidence = job(
        *cast(
            culprits,
            4,
            lambda r: waiting(
                r, "barrier", f"train.py:{STOP_LINES['barrier']} main", after=gradients(5), sizes=(), counts={"next_batch": 5}
            ),
            lambda r: in_backward(r, f"train.py:{STOP_LINES['backward']} main", counts={"next_batch": 6}),
        ),
        sources={"train.py": STOP},
    )

    found = root(evidence)

    expect(found, "RW219", culprits, "left the loop early", at=f"train.py:{STOP_LINES['break']}")
    assert "val_loss > best" in found.why


def test_rw219_in_a_job_that_reads_its_data_anew_in_every_epoch() -> None:
    counts = {"next_batch": 500, "end_of_data": 5}
    evidence = job(
        waiting(1, "barrier", f"train.py:{STOP_LINES['barrier']} main", after=gradients(5), sizes=(), counts=counts),
        in_backward(0, f"train.py:{STOP_LINES['backward']} main", counts={"next_batch": 501, "end_of_data": 5}),
        in_backward(2, f"train.py:{STOP_LINES['backward']} main", counts={"next_batch": 501, "end_of_data": 5}),
        sources={"train.py": STOP},
    )

    expect(root(evidence), "RW219", [1], "left the loop early")


# -- RW219 in a function that has been left; RW215; RW202 by two conditions ---------------------------------------------------

FIT, FIT_LINES = numbered("""\
def fit(stop):
    for epoch in range(40):
        for batch in data:
            net(batch).backward()       # <- backward
        if stop(epoch):
            break                       # <- break
    return epoch

def main():
    fit(EarlyStopping())                # <- fit
    dist.broadcast(weights, src=0)      # <- broadcast
""")


@pytest.mark.parametrize(("world_size", "culprits"), [*PLACES, (2, [1])])
def test_rw219_a_rank_that_broke_out_of_a_loop_in_a_function_it_has_left(world_size: int, culprits: list[int]) -> None:
    fit = f"train.py:{FIT_LINES['fit']} main"
    evidence = job(
        *cast(
            culprits,
            world_size,
            lambda r: waiting(
                r, "broadcast", f"train.py:{FIT_LINES['broadcast']} main", after=gradients(5), peer=0, counts={"next_batch": 5}
            ),
            lambda r: in_backward(r, [f"train.py:{FIT_LINES['backward']} fit", fit], counts={"next_batch": 6}),
        ),
        sources={"train.py": FIT},
    )

    found = root(evidence)

    expect(found, "RW219", culprits, "left the loop", at=f"train.py:{FIT_LINES['break']}")
    assert "stop(epoch)" in found.why


def test_rw219_is_a_suspicion_where_the_data_may_have_ended_too() -> None:
    fit = f"train.py:{FIT_LINES['fit']} main"
    evidence = job(
        in_backward(0, [f"train.py:{FIT_LINES['backward']} fit", fit]),
        waiting(1, "broadcast", f"train.py:{FIT_LINES['broadcast']} main", after=gradients(5), peer=0),
        sources={"train.py": FIT},
    )

    found = root(evidence)

    expect(found, "RW219", [1], "stop(epoch)", "ends when `data` does", certain=False)
    assert "compare" in found.next[0]


UNUSED, UNUSED_LINES = numbered("""\
def train(loader):
    for batch in loader:
        net(batch).backward()           # <- backward
    dist.barrier()                      # <- barrier
""")


@pytest.mark.parametrize(("world_size", "culprits"), PLACES)
def test_rw215_as_many_backwards_but_fewer_gradients(world_size: int, culprits: list[int]) -> None:
    backward = f"train.py:{UNUSED_LINES['backward']} train"
    evidence = job(
        *cast(
            culprits,
            world_size,
            lambda r: _with_backward_that_reduced_nothing(
                waiting(r, "barrier", f"train.py:{UNUSED_LINES['barrier']} train", after=gradients(5, backward), sizes=()), backward
            ),
            lambda r: in_backward(r, backward, after=gradients(5, backward), counts={"forward": 6, "backward": 6}),
        ),
        sources={"train.py": UNUSED},
    )

    expect(root(evidence), "RW215", culprits, "fewer gradients", at=backward.split()[0])


def _with_backward_that_reduced_nothing(evidence: RankEvidence, at: str) -> RankEvidence:
    *before, last = evidence.calls
    extra = Call("backward", last.started_ns - SECOND // 2, last.started_ns - SECOND // 4, stack_of(at))
    return replace(evidence, calls=(*before, extra, last), counts={**evidence.counts, "forward": 6, "backward": 6})


TWO_WAYS, TWO_LINES = numbered("""\
def main(rank):
    if rank == 0:
        dist.all_reduce(x)              # <- reduce
    else:
        dist.broadcast(x, src=0)        # <- broadcast
""")


@pytest.mark.parametrize("world_size", WORLDS)
def test_rw202_each_branch_has_a_collective_of_its_own(world_size: int) -> None:
    evidence = job(
        waiting(0, "all_reduce", f"train.py:{TWO_LINES['reduce']} main"),
        *[waiting(r, "broadcast", f"train.py:{TWO_LINES['broadcast']} main", peer=0) for r in range(1, world_size)],
        sources={"train.py": TWO_WAYS},
    )

    found = root(evidence)

    expect(found, "RW202", [0, 1] if world_size == 2 else [0], "different collectives", "all_reduce", "broadcast")
    assert "conditions on the rank" in found.why
