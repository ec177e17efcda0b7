"""The audits side by side: which ranks train one model, and which of their steps and passes are the same one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwise.diagnose.silent.audited_job import AuditedJob, num_backwards
from rankwise.evidence.audit import Audit, BatchSeen, Drawn, OptimizerSeen, PassBegun, PassEnded, Reduced
from rankwise.evidence.records import Frame
from tests.diagnose.jobs import job, new_group, path_of
from tests.diagnose.silent.audits import DDP, audited, step

BEGUN = PassBegun(1, 0, 20, 5, "RandomSampler", True, None, False, False, 64, False, 0, 0)


def wrapped(*ranks: int) -> Audit:
    return Audit(wrappers=(replace(DDP, ranks=ranks),))


def test_ranks_are_grouped_by_what_their_wrapper_reduces_over() -> None:
    assert audited(wrapped(0, 2), wrapped(1, 3), wrapped(2, 0), wrapped(3, 1)).groups() == [[0, 2], [1, 3]]
    assert audited(Audit(), Audit()).groups() == [[0, 1]]
    assert audited(wrapped(0, 1, 7), wrapped(0, 1, 7)).groups() == [[0, 1]], "7 was not audited"
    assert audited(Audit()).groups() == [], "one rank has nobody to differ from"


def test_ranks_train_one_model_where_they_are_wrapped_or_reduce_gradients_by_hand() -> None:
    by_hand = Audit(reduces=(Reduced("all_reduce", "0", 0, "gradient of weight", (), (), 8, 1),))
    metric = Audit(reduces=(Reduced("all_reduce", "0", 0, "", (), (1.0,), 1, 1),))

    assert audited(wrapped(0, 1), Audit()).are_together([0, 1])
    assert audited(by_hand, by_hand).are_together([0, 1])
    assert not audited(metric, metric).are_together([0, 1])


def test_gradients_reduced_in_a_group_bind_only_its_members() -> None:
    by_hand = Audit(reduces=(Reduced("all_reduce", "1", 0, "gradient of weight", (), (), 8, 1),))
    seen = audited(by_hand, Audit(), by_hand)
    groups = (new_group(0, 2, name="1"),)
    seen = AuditedJob(job(*[replace(e, groups=groups) for e in seen.job.ranks.values()]))

    assert seen.are_together([0, 2]) and not seen.are_together([0, 1])


def test_steps_are_matched_by_their_numbers_and_reductions() -> None:
    mine = Audit(steps=(step(2), step(0), step(1)))
    theirs = Audit(steps=(step(0), step(2), step(3), step(1, syncs=9)))

    assert [{r: s.n for r, s in steps.items()} for steps in audited(mine, theirs).steps([0, 1])] == [{0: 0, 1: 0}, {0: 2, 1: 2}]


def test_no_steps_match_once_a_rank_has_joined_early() -> None:
    assert audited(Audit(steps=(step(0), step(1))), Audit(steps=(step(0), step(1, joined=True)))).steps([0, 1]) == []


def test_loaders_are_told_apart_by_their_line_and_the_order_they_were_made_in() -> None:
    again = replace(BEGUN, n=1)
    second, elsewhere = replace(BEGUN, loader=2), replace(BEGUN, loader=3, made=6)
    audit = Audit(
        passes=(BEGUN, second, again, elsewhere),
        drawn=(Drawn(1, 1, 0, 9, (4, 5), 2),),
        batches=(BatchSeen(1, 1, 0, (1,), (), 8, 2, 1),),
        pass_ends=(PassEnded(1, 0, True, 4, 16, 0, 0, 0),),
    )
    found = {(frame.line, number): passes for (frame, number), passes in audited(audit).loaders(0).items()}

    assert {key: [one.begun.loader for one in passes] for key, passes in found.items()} == {(5, 0): [1, 1], (5, 1): [2], (6, 0): [3]}
    first, then = found[5, 0]
    assert first.ended is not None and first.drawn == {} and then.ended is None
    assert list(then.drawn) == [0] and list(then.batches) == [0]


def test_only_loaders_that_all_ranks_have_are_shared() -> None:
    seen = audited(Audit(passes=(BEGUN, replace(BEGUN, loader=2))), Audit(passes=(BEGUN,)))

    assert [{rank: len(passes) for rank, passes in loader.items()} for loader in seen.shared_loaders([0, 1])] == [{0: 1, 1: 1}]


@pytest.mark.parametrize(
    ("ended", "batch", "trains"),
    [
        (PassEnded(1, 0, True, 4, 16, 0, 3, 0), None, True),
        (PassEnded(1, 0, True, 4, 16, 0, 0, 0), None, False),
        (None, 3, True),
        (None, 2, False),
    ],
)
def test_a_pass_trains_if_backwards_were_made_while_it_ran(ended: PassEnded | None, batch: int | None, trains: bool) -> None:
    batches = () if batch is None else (BatchSeen(1, 0, 0, (1,), (), 8, 2, batch),)
    audit = Audit(passes=(replace(BEGUN, backwards=2),), batches=batches, pass_ends=() if ended is None else (ended,))

    [[one]] = audited(audit).loaders(0).values()

    assert one.trains == trains


def test_an_optimizer_is_placed_where_it_was_built_or_else_stepped() -> None:
    optimizers = (OptimizerSeen(0, 20, 8, 2, 2, 2, 2), OptimizerSeen(1, 21, 0, 2, 2, 2, 2))
    seen = audited(Audit(optimizers=optimizers))

    assert [seen.built(0, i) for i in range(3)] == [8, 21, None]


def test_the_nearest_line_with_all_words_is_found_and_comments_do_not_count() -> None:
    source = "loss.item()\nprint(loss)\n\n\nprint(loss)  # here\nx = 1  # print(loss)\n"
    seen = AuditedJob(job(sources={"train.py": source}))

    assert seen.line_with(path_of("train.py"), ("print", "loss"), near=6) == 5
    assert seen.line_with(path_of("train.py"), ("print", "loss"), near=1) == 2
    assert seen.line_with(path_of("train.py"), ("print", "acc")) is None


def test_all_kinds_of_backwards_are_counted() -> None:
    assert num_backwards("zns-|cG") == 3


def test_a_place_may_be_a_line_or_the_number_of_a_site() -> None:
    seen = audited(Audit())

    assert seen.place(0, 7).line == 7
    assert seen.place(0, Frame(path_of("train.py"), 31, "main")).line == 31
