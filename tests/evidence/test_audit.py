"""The audit's journal lines become records: what is kept, what goes on, and which places they mention."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise.evidence import audit
from rankwise.evidence.audit import AuditLog, RandomUsed, Times, Window, total_times
from tests.diagnose.jobs import stack_of

SITES = {n: stack_of(f"train.py:{n} main") for n in range(10)}


def window(first: int, count: int, **facts: Any) -> dict[str, Any]:
    return {"a": "window", "i": 0, "pattern": "zs", "first": first, "count": count, "site": 3, **facts}


def filled(*lines: dict[str, Any]) -> AuditLog:
    log = AuditLog()
    for line in lines:
        log.take(line)
    return log


def test_each_line_becomes_a_record_of_its_kind() -> None:
    log = filled({"a": "ddp", "site": 1, "broadcast_buffers": True, "ranks": [0, 1], "reduced": 4, "bytes": 16, "t": 7}, window(0, 1))
    found = log.frozen(SITES, [])

    assert (found.wrappers[0].ranks, found.wrappers[0].t, found.windows[0].pattern) == ((0, 1), 7, "zs")
    assert log.num_taken == 2


def test_the_places_that_are_mentioned_are_kept_and_no_others() -> None:
    found = filled(
        window(0, 1, places={"s": 5, "z": 99}),
        {"a": "optimizer", **dict.fromkeys(("i", "held", "of_model", "with_grad", "model_with_grad"), 1), "site": 6, "built": 7},
    )

    assert set(found.frozen(SITES, []).sites) == {3, 5, 6, 7}


def test_a_window_that_goes_on_takes_the_place_of_its_earlier_line() -> None:
    log = filled(window(0, 1), window(0, 1, i=1), window(0, 4), window(4, 1), window(4, 1, pattern="zns"))

    assert [(one.i, one.first, one.count) for one in log.frozen({}, []).windows] == [(0, 0, 4), (1, 0, 1), (0, 4, 1), (0, 4, 1)]
    assert log.num_taken == 5


def test_an_older_window_of_another_pattern_is_not_gone_on_with() -> None:
    assert len(filled(window(0, 1), window(1, 1, pattern="zns"), window(0, 2)).frozen({}, []).windows) == 3


@pytest.mark.parametrize(
    ("line", "error"),
    [({"a": "unheard"}, KeyError), ({}, KeyError), (window(0, 1, lines="many"), ValueError), ({"a": "window"}, ValueError)],
)
def test_other_lines_are_refused_and_change_nothing(line: dict[str, Any], error: type[Exception]) -> None:
    log = filled(window(0, 1))
    with pytest.raises(error):
        log.take(line)

    assert log.num_taken == 1 and len(log.frozen({}, []).windows) == 1


def test_of_very_many_records_the_first_and_the_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_MOST", 4)

    kept = filled(*[{"a": "seeded", "which": "torch", "value": str(n), "site": 1} for n in range(9)]).frozen({}, []).seeds

    assert [one.value for one in kept] == ["0", "1", "7", "8"]


def test_what_workers_reported_stands_after_the_ranks_own() -> None:
    own = {"a": "random", "n": 0, "used": ["torch"], "before": [1], "worker": -1}
    theirs = RandomUsed(1, ("numpy",), (2,), 0)

    assert [one.n for one in filled(own).frozen({}, [theirs]).randoms] == [0, 1]


def test_times_are_told_from_ten_steps_on() -> None:
    one = Times(5, 50.0, 1.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)

    assert total_times((one,)) is None and total_times((one,), 5) == one
    assert total_times((one, one)) == Times(10, 100.0, 1.0, 10.0, 12.0, 14.0, 16.0, 18.0, 20.0)


def test_a_window_without_details_has_the_usual_ones() -> None:
    assert filled(window(2, 3)).frozen({}, []).windows == (Window(0, "zs", 2, 3, 3),)
