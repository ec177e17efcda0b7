"""What the records tell of themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwise.evidence.records import Call, Ended, RankEvidence
from tests.diagnose.jobs import joined


@pytest.mark.parametrize(
    ("method", "address", "port"),
    [
        ("env://", "localhost", 29500),
        ("tcp://10.0.0.1:2345", "10.0.0.1", 2345),
        ("tcp://[fe80::1]:2345", "fe80::1", 2345),
        ("tcp://node-a:2345?timeout=5", "node-a", 2345),
        ("tcp://node-a:2345/path", "node-a", 2345),
        ("tcp://node-a:port", "node-a", None),
        ("tcp://node-a:123456", "node-a", None),
    ],
)
def test_the_store_is_where_the_method_says_or_else_the_environment(method: str, address: str, port: int | None) -> None:
    init = replace(joined(0, 2), method=method)

    assert (init.store_address, init.store_port) == (address, port)


def test_a_call_is_open_until_it_has_ended() -> None:
    assert Call("send", 5, 0).is_open and not Call("send", 5, 6).is_open


def test_the_usual_tag_is_none_and_only_a_forward_has_a_mode() -> None:
    assert [Call("send", 1, 2, reduce_op=tag).tag for tag in ("0", "", "7")] == ["", "", "7"]
    assert Call("forward", 1, 2, reduce_op="no_sync+eval").mode == ("no_sync", "eval")
    assert Call("all_reduce", 1, 2, reduce_op="SUM").mode == ()


@pytest.mark.parametrize(
    ("ended", "is_so"),
    [
        (Ended("signal", 9, code=0, signal=11), True),
        (Ended("signal", 9, signal=11), False),
        (Ended("finished", 9, code=0), False),
    ],
)
def test_a_crash_after_the_scripts_good_end_is_told_apart(ended: Ended, is_so: bool) -> None:
    assert ended.crashed_after_its_end == is_so


def test_passes_over_data_are_no_calls_to_date_a_rank_by() -> None:
    calls = (Call("forward", 5, 6), Call("backward", 7, 8), Call("pass_end", 9, 9), Call("pass_start", 10, 10))

    assert RankEvidence(0, calls=calls).last_call_ns == 7
    assert RankEvidence(0).last_call_ns == 0
