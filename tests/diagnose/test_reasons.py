"""What the code shows between two places: statements that leave, conditions, handlers, and the loops around them."""

from __future__ import annotations

import pytest

from rankwise.diagnose.reasons import LeftLoops, below, find_catches, find_left_loops, find_skips, reasons_text
from rankwise.source.book import SourceBook
from tests.diagnose.jobs import frame_of, numbered, path_of, stack_of

SOURCE, AT = numbered("""\
def train(loader):
    for epoch in range(3):
        forward()  # <- forward
        if not finite:
            continue  # <- continue
        if warm:
            backward()  # <- backward
        for batch in loader:  # <- inner
            if done:
                break  # <- break
            try:
                step()  # <- step
            except ValueError:  # <- handler
                log()
    while not over:  # <- while
        poll()  # <- poll
    finish()  # <- finish

def report():
    for name in names:  # <- names
        reduce()  # <- reduce
""")
BOOK = SourceBook({path_of("train.py"): SOURCE})


def at(*marks: str, function: str = "train"):
    return stack_of([f"train.py:{AT[mark]} {function}" for mark in marks])


def kinds(reasons) -> list[tuple[int, str, str]]:
    return [(reason.frame.line, reason.kind, reason.text) for reason in reasons]


def test_what_leads_past_a_call_is_a_statement_that_leaves_or_a_condition_around_it() -> None:
    assert kinds(find_skips(BOOK, at("forward"), at("backward"))) == [
        (AT["continue"], "continue", "continues when `not finite`"),
        (AT["backward"] - 1, "condition", "only when `warm`"),
    ]


def test_what_both_calls_have_passed_led_past_neither() -> None:
    assert kinds(find_skips(BOOK, at("backward"), at("step"))) == [
        (AT["break"], "break", "breaks out of the loop when `done`"),
        (AT["handler"], "except", "catches an exception"),
    ]


def test_without_a_call_before_it_everything_in_the_function_may_have() -> None:
    assert kinds(find_skips(BOOK, (), at("backward"))) == kinds(find_skips(BOOK, at("forward"), at("backward")))


@pytest.mark.parametrize(
    ("inside", "outside", "starts", "reasons"),
    [
        (
            "step",
            "finish",
            ["inner", "epochs"],
            [("break", "breaks"), ("data", "ends when `loader` does"), ("data", "ends when `range(3)` does")],
        ),
        ("step", "backward", [], []),
        ("forward", "finish", ["epochs"], [("data", "ends when `range(3)` does")]),
        ("poll", "finish", ["while"], [("while", "goes on only while `not over`")]),
        ("finish", "poll", [], []),
    ],
)
def test_loops_that_one_is_in_and_another_is_beyond(inside: str, outside: str, starts: list[str], reasons: list[tuple[str, str]]) -> None:
    found = find_left_loops(BOOK, at(inside), at(outside))

    assert [loop.start for _, loop in found.left] == [{**AT, "epochs": 2}[name] for name in starts] if found else starts == []
    told = [] if found is None else [(reason.kind, reason.text) for reason in found.reasons if reason.kind != "continue"]
    assert len(told) == len(reasons) and all(kind == a and text.startswith(b) for (kind, text), (a, b) in zip(told, reasons))


def left(inside: str, outside: str) -> LeftLoops:
    found = find_left_loops(BOOK, at(inside), at(outside))
    assert found is not None
    return found


def test_left_loops_are_told_by_the_outermost_ones_beginning() -> None:
    assert left("step", "finish").place() == "train.py:2"


def test_a_line_is_around_only_within_their_lines_and_their_file() -> None:
    loops = left("poll", "finish")

    assert loops.are_around(frame_of(f"train.py:{AT['poll']} train")) and loops.are_around(frame_of(f"train.py:{AT['while']} train"))
    assert not loops.are_around(frame_of(f"train.py:{AT['finish']} train"))
    assert not loops.are_around(frame_of(f"eval.py:{AT['poll']} train"))


def test_a_loop_in_a_function_that_the_other_is_not_in_was_left() -> None:
    stack = (*at("reduce", function="report"), *at("step"))
    found = find_left_loops(BOOK, stack, at("step"))

    assert [loop.start for _, loop in found.left] == [AT["names"]] and found.is_in_another
    assert not find_left_loops(BOOK, (*at("reduce", function="report"), *at("finish")), at("finish")).is_in_another


def test_a_rank_that_shares_no_function_tells_nothing() -> None:
    assert find_left_loops(BOOK, at("step"), stack_of("other.py:3 elsewhere")) is None


def test_handlers_around_one_and_not_the_other_may_have_swallowed_an_exception() -> None:
    assert kinds(find_catches(BOOK, at("step"), at("finish"))) == [(AT["handler"], "except", "catches an exception")]
    assert find_catches(BOOK, at("step"), at("step")) == []


def test_four_reasons_are_told_and_the_rest_counted_as_more() -> None:
    reasons = find_skips(BOOK, at("forward"), at("backward"))

    assert reasons_text(reasons[:1]) == f"train.py:{AT['continue']} continues when `not finite`"
    assert reasons_text(reasons * 2).count(" or ") == 3 and not reasons_text(reasons * 2).endswith("…")
    assert reasons_text(reasons * 3).endswith(" or …")


def test_what_a_frame_called_is_below_it() -> None:
    a, b, c = stack_of(["a.py:1 a", "b.py:2 b", "c.py:3 c"])

    assert below((a, b, c), b) == (a,) and below((a, b, c), c) == (a, b) and below((a, b), c) == ()
    assert below((b, a, b), b) == (b, a), "the outermost, where it called itself"
