"""The log of collectives: what ranks must have alike, and columns that stay of one length."""

from __future__ import annotations

import pytest

from rankwise.evidence.collective_log import CollectiveLog, LoggedCollective, Signature

REDUCE = Signature("0", "all_reduce", (4, 2), "float32", None, "SUM")


@pytest.mark.parametrize(
    ("what", "compared"),
    [
        (REDUCE, {"op": "all_reduce", "size": 8, "dtype": "float32", "src": None, "reduce_op": "SUM"}),
        (Signature("0", "broadcast", (8,), "float32", 3), {"op": "broadcast", "size": 8, "dtype": "float32", "src": 3, "reduce_op": None}),
        (
            Signature("0", "all_to_all", (8,), "float32", 3),
            {"op": "all_to_all", "size": None, "dtype": None, "src": None, "reduce_op": None},
        ),
        (Signature("0", "scatter", (8,), "float32", 0), {"op": "scatter", "size": None, "dtype": None, "src": 0, "reduce_op": None}),
        (Signature("0", "all_reduce"), {"op": "all_reduce", "size": 1, "dtype": None, "src": None, "reduce_op": None}),
    ],
    ids=["a reduction", "with a source", "free sizes", "a root alone", "hardly anything known"],
)
def test_what_ranks_must_have_alike_depends_on_the_operation(what: Signature, compared: dict[str, object]) -> None:
    assert what.compared() == compared


def test_a_shape_is_no_matter_where_the_number_of_elements_is_the_same() -> None:
    assert REDUCE.compared() == Signature("0", "all_reduce", (8,), "float32", 1, "SUM").compared()


@pytest.mark.parametrize(
    ("what", "text"),
    [(REDUCE, "all_reduce of float32(4, 2)"), (Signature("0", "barrier"), "barrier"), (Signature("0", "send", (3,)), "send of (3)")],
)
def test_a_signature_reads_as_a_call(what: Signature, text: str) -> None:
    assert str(what) == text


def test_entries_come_back_as_they_were_added() -> None:
    log = CollectiveLog()
    log.add(1, REDUCE, 100, True, ("here",), "backward")
    log.add(2, REDUCE, 200, False)
    log.add(1, Signature("7", "barrier"), 300, False, ("here",))

    assert list(log) == [
        LoggedCollective(1, REDUCE, 100, True, 0, "backward"),
        LoggedCollective(2, REDUCE, 200, False, -1, "user"),
        LoggedCollective(1, Signature("7", "barrier"), 300, False, 0, "user"),
    ]
    assert len(log.signatures) == 2 and log.groups() == {"0", "7"}
    assert log.stack_of(log[0]) == ("here",) and log.stack_of(log[1]) == ()
    assert [entry.created_ns for entry in log.pending()] == [200, 300]


def test_nothing_is_pending_where_all_is_done() -> None:
    log = CollectiveLog()
    log.add(1, REDUCE, 100, True)

    assert log.pending() == [] and CollectiveLog().pending() == []


@pytest.mark.parametrize(("seq", "created_ns"), [(-1, 0), (1 << 32, 0), (0, -1), (0, 1 << 64)])
def test_numbers_that_do_not_fit_leave_the_log_as_it_was(seq: int, created_ns: int) -> None:
    log = CollectiveLog()
    with pytest.raises(OverflowError):
        log.add(seq, REDUCE, created_ns, True)
    log.add((1 << 32) - 1, REDUCE, (1 << 64) - 1, True)

    assert len(log) == 1 and log[0].seq == (1 << 32) - 1
