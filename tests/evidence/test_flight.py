"""torch's flight recorder, joined with the probe's calls; any other text is None, and entries that make no sense are left out."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rankwise.evidence.collective_log import CollectiveLog
from rankwise.evidence.flight import base_group, log_from_calls, read_flights
from rankwise.evidence.records import Call, Frame
from tests.evidence.strategies import FUZZ, deep, json_values

TRAIN = (Frame("/home/ada/train.py", 9, "step"),)
LOG = (Frame("/home/ada/train.py", 20, "log"),)


def entry(seq: int, created: int, name: str = "gloo:all_reduce", **more: Any) -> dict[str, Any]:
    """An entry as torch 2.13 writes it for gloo."""
    return {
        "collective_seq_id": seq, "duration_ms": None, "input_dtypes": ["Float"], "input_sizes": [[4, 2]], "is_p2p": False, "op_id": seq,
        "output_dtypes": ["Float"], "output_sizes": [[4, 2]], "p2p_seq_id": 0, "pg_id": 0, "process_group": ["0", "default_pg"],
        "profiling_name": name, "record_id": seq, "retired": True, "state": "scheduled", "time_created_ns": created, "timeout_ms": 1800000,
        **more,
    }  # fmt: skip


def dump(*entries: Any) -> bytes:
    return json.dumps({"version": "2.10", "pg_config": {}, "entries": list(entries)}).encode()


def read_flight(text: bytes, calls: tuple[Call, ...]) -> CollectiveLog | None:
    return read_flights([text], calls)


CALLS = (
    Call("backward", 100, 200, TRAIN),
    Call("all_reduce", 300, 400, LOG, sizes=(4, 2), dtype="float32", reduce_op="AVG"),
    Call("broadcast", 500, 0, LOG, peer=3),
)


def test_entries_are_joined_with_the_calls_they_were_made_in() -> None:
    log = read_flight(
        dump(entry(1, 150), entry(2, 350), entry(3, 510, "gloo:broadcast", retired=False, input_dtypes=["Long"]), entry(4, 50)), CALLS
    )
    assert log is not None
    backward, user, broadcast, before = log

    assert (backward.origin, log.stack_of(backward), backward.what.reduce_op) == ("backward", TRAIN, "")
    assert (user.origin, log.stack_of(user), user.what.reduce_op, user.done) == ("user", LOG, "AVG", True)
    assert (user.what.op, user.what.sizes, user.what.dtype, user.what.group) == ("all_reduce", (4, 2), "float32", "0")
    assert (broadcast.what.peer, broadcast.what.dtype, broadcast.done) == (3, "int64", False)
    assert log.stack_of(before) == ()
    assert [one.seq for one in log.pending()] == [3]


def test_nccl_says_completed_where_gloo_says_retired() -> None:
    log = read_flight(
        dump(
            entry(1, 1, "nccl:_all_gather_base", retired=False, state="completed"),
            entry(2, 2, "nccl:all_reduce", retired=False, state="started"),
        ),
        (),
    )
    assert log is not None
    assert [(one.what.op, one.done) for one in log] == [("all_gather_into_tensor", True), ("all_reduce", False)]


def test_point_to_point_is_kept_apart_from_collectives() -> None:
    sent = entry(7, 350, "nccl:send 0->1", is_p2p=True, p2p_seq_id=3, retired=False)
    log = read_flight(dump(sent, entry(8, 360, "nccl:coalesced", is_p2p=True), entry(2, 2)), CALLS)
    assert log is not None
    send, reduce = log

    assert (send.what.op, send.what.peer, send.seq, send.done, log.stack_of(send)) == ("send", 1, 3, False, LOG)
    assert send.what.group != reduce.what.group == "0"  # they are numbered apart


def test_a_batch_of_transfers_is_done_when_its_last_entry_is() -> None:
    def batch(number: int, **last: object) -> list[dict[str, object]]:
        common = {"p2p_seq_id": number, "retired": False, "state": "scheduled"}
        return [
            entry(1, 10 * number, "nccl:send 0->1", is_p2p=True, **common),
            entry(1, 10 * number + 1, "nccl:recv 0<-1", is_p2p=True, **common),
            entry(1, 10 * number + 2, "nccl:coalesced", input_sizes=[], **{**common, **last}),
        ]

    log = read_flight(dump(entry(1, 1), *batch(1, state="completed"), *batch(2)), ())
    assert log is not None

    assert [(one.what.op, one.seq, one.done) for one in log] == [
        ("all_reduce", 1, True),
        ("send", 1, True),
        ("recv", 1, True),
        ("send", 2, False),
        ("recv", 2, False),
    ]


def test_a_gather_of_uneven_parts_is_one_collective() -> None:
    parts = [entry(4, n, "nccl:_broadcast_oop", retired=False, state="scheduled", input_sizes=[[n]]) for n in (5, 7)]
    log = read_flight(dump(*parts, entry(4, 8, "nccl:ALLGATHER_coalesced", input_sizes=[], state="completed")), ())
    assert log is not None

    assert [(one.what.op, one.seq, one.done) for one in log] == [("all_gather", 4, True)]


def test_two_backends_of_one_group_number_their_collectives_apart() -> None:
    log = read_flights([dump(entry(1, 5, "gloo:all_reduce")), dump(entry(1, 4, "nccl:all_reduce"))], (), "cpu:gloo,cuda:nccl")
    assert log is not None

    assert [base_group(one.what.group) for one in log] == ["0", "0"]
    assert len(log.groups()) == 2


def test_what_the_user_calls_inside_a_ddp_forward_is_not_ddps_own() -> None:
    calls = (Call("forward", 100, 200, TRAIN), Call("all_reduce", 120, 130, LOG))
    log = read_flight(dump(entry(1, 110, "gloo:broadcast"), entry(2, 125)), calls)
    assert log is not None

    assert [one.origin for one in log] == ["forward", "user"]


def test_entries_that_make_no_sense_are_left_out() -> None:
    strange = [
        *[None, 3, "x", [], {}, entry(-1, 1), entry(1, -1), entry(2**70, 1), entry(1, 2**70), entry(1, 1, process_group=[])],
        *[entry(1, 1, input_sizes=sizes) for sizes in ([["x"]], 7, [[1e999]], [[-1]], {})],
        entry(1, 1, input_dtypes={}),
    ]
    log = read_flight(dump(*strange, entry(5, 5)), CALLS)
    assert log is not None

    assert [(one.seq, one.what.op) for one in log if one.seq == 5] == [(5, "all_reduce")]
    assert all(log.stack_of(one) is not None for one in log)  # whatever was kept can be read to its end
    lengths = {len(log.what), len(log.seq), len(log.created_ns), len(log.done), len(log.site), len(log.origin)}
    assert len(lengths) == 1


@FUZZ
@given(text=st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_text_is_a_log_or_none(text: bytes) -> None:
    log = read_flight(text, CALLS)

    assert log is None or len(log) == 0


@FUZZ
@given(data=st.data())
def test_any_values_in_an_entry(data: st.DataObject) -> None:
    good = entry(1, 350)
    keys = data.draw(st.lists(st.sampled_from(sorted(good)), min_size=1, max_size=4))
    wrong = {**good, **{key: data.draw(json_values) for key in keys}}
    log = read_flight(dump(wrong, entry(2, 360)), CALLS)
    assert log is not None

    assert list(log)[-1].seq == 2
    assert len(list(log)) == len(log) == len(log.seq) == len(log.created_ns) == len(log.done) == len(log.site) == len(log.origin)


def test_nesting_deeper_than_the_stack_is_none() -> None:
    assert read_flight(deep(), ()) is None
    assert read_flight(b'{"entries": ' + deep() + b"}", ()) is None


def test_without_a_recorder_the_calls_stand_in() -> None:
    calls = (
        Call("all_reduce", 1, 2, LOG, dtype="float32", sizes=(3,)),
        Call("forward", 3, 9, TRAIN),
        Call("send", 4, 5, LOG, peer=1),
        Call("barrier", 10, 0, LOG, group="2"),
        Call("all_reduce", 11, 12, LOG, failed=True),
    )
    log = log_from_calls(calls)

    assert log.is_partial
    assert [(one.seq, one.what.op, one.what.group, one.done) for one in log] == [
        (1, "all_reduce", "0", True),
        (1, "barrier", "2", False),
        (2, "all_reduce", "0", False),
    ]
