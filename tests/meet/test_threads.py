"""Work in threads of its own: the answers of calls that come back, without waiting for those that do not."""

from __future__ import annotations

import threading

from rankwise.meet.threads import run_all


def test_what_does_not_come_back_has_no_answer_and_holds_nobody_up() -> None:
    both, end = threading.Barrier(2, timeout=60), threading.Event()
    try:
        answers = run_all({"a": both.wait, "b": both.wait, "stuck": end.wait}, 5.0)
    finally:
        end.set()

    assert answers.keys() == {"a", "b"}, "the first two can only answer if they run at the same time"
