"""A pickle that is read without being run: plain values, the calls nobody made, and damage for what no pickle is."""

from __future__ import annotations

import collections
import pickle
import struct
from fractions import Fraction
from typing import Any

import pytest
import torch

from rankwise.weights import opcodes
from rankwise.weights.opcodes import FunctionCall, Global, Persistent, PickleBytes, Pickled, read_pickle
from rankwise.weights.tensor_records import Damaged, StateDictNode


class Made:
    """Pickles as whatever `__reduce__` could return."""

    def __init__(self, *reduced: Any) -> None:
        self._reduced = reduced

    def __reduce__(self) -> Any:
        return self._reduced


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


def read(data: bytes) -> Pickled:
    return read_pickle(PickleBytes(data))


def value_of(pickled: bytes) -> Any:
    return read(pickled).value


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_is_what_pickle_makes_of_it(protocol: int) -> None:
    plain = {
        "numbers": [None, True, False, 0, 255, 65536, -1, 1 << 40, 1 << 3000, 1.5],
        "texts": ["", "text", "ä", "long" * 100],
        "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
        "nested": [[], [1], {}, {"a": 1}, {"a": {"b": [1, (2, {})]}, 3: None}, ["same"] * 3],
        "bytes": [b"bytes" * 100] if protocol > 2 else [],  # a call before
    }

    assert value_of(pickle.dumps(plain, protocol)) == plain


def test_one_object_in_two_places_stays_one() -> None:
    shared = [1]

    one, other = value_of(pickle.dumps([shared, shared]))

    assert one is other


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_set_is_a_list_and_no_call(protocol: int) -> None:
    pickled = read(pickle.dumps({7}, protocol))

    assert pickled.value == [7]
    assert pickled.calls == ()


@pytest.mark.parametrize(
    "asked", [Made(sorted, ([1],)), Made(set, ((1,),)), Made(set, ([1], [2])), Made(collections.OrderedDict, ([("a", 1)],))]
)
def test_what_only_looks_like_a_set_or_an_empty_dictionary_is_a_call(asked: Made) -> None:
    assert isinstance(value_of(pickle.dumps(asked)), FunctionCall)


def test_a_frozen_set_is_a_tuple() -> None:
    assert value_of(pickle.dumps(frozenset({7}), 4)) == (7,)


def test_a_call_is_noted_and_not_made() -> None:
    pickled = read(pickle.dumps({"model": Made(exec, ("1 / 0",)), "epoch": 3}))

    (call,) = pickled.calls
    assert (str(call.target), call.args) == ("builtins.exec", ("1 / 0",))
    assert pickled.value == {"model": call, "epoch": 3}
    assert pickled.imports == (Global("builtins", "exec"),)


def test_what_is_imported_and_never_called_is_noted_once() -> None:
    assert read(pickle.dumps([Fraction, Fraction, exec])).imports == (Global("fractions", "Fraction"), Global("builtins", "exec"))


def test_the_state_of_an_object_and_what_is_put_into_it_go_to_its_call() -> None:
    named = read(pickle.dumps(Named("net"), 4)).calls[0]
    listed = read(pickle.dumps(Made(Named, (), None, iter([1, 2]), iter([("a", 3)])), 4)).calls[0]

    assert named.state == {"name": "net"}
    assert listed.items == [1, 2, "a", 3]


@pytest.mark.parametrize(
    "pickled",
    [
        b"(S'a'\nI1\nios\nsystem\n.",  # INST
        b"(cos\nsystem\nS'a'\nI1\no.",  # OBJ
        b"cos\nsystem\n(S'a'\nI1\ntR.",  # REDUCE
        b"cos\nsystem\n(S'a'\nI1\nt\x81.",  # NEWOBJ
        b"cos\nsystem\n(S'a'\nI1\nt}\x92.",  # NEWOBJ_EX
        b"X\x02\x00\x00\x00osX\x06\x00\x00\x00system\x93(S'a'\nI1\ntR.",  # STACK_GLOBAL
    ],
)
def test_every_way_to_ask_for_a_call_is_seen(pickled: bytes) -> None:
    found = read(pickled)

    assert [(str(call.target), call.args) for call in found.calls] == [("os.system", ("a", 1))]
    assert found.imports == (Global("os", "system"),)


def test_keywords_are_the_last_argument() -> None:
    assert read(b"cos\nsystem\n(I1\nt}S'b'\nI2\ns\x92.").calls[0].args == (1, {"b": 2})


def test_a_call_that_is_dropped_from_the_stack_is_seen_all_the_same() -> None:
    dropped = read(b"cos\nsystem\n)R0I3\n.")

    assert dropped.value == 3
    assert len(dropped.calls) == 1


def test_an_extension_code_is_an_import() -> None:
    assert read(b"\x80\x02\x82\x01.").imports == (Global("copyreg extension", "1"),)


def test_an_ordered_dictionary_keeps_what_torch_noted_about_its_modules() -> None:
    state = torch.nn.Sequential(torch.nn.BatchNorm1d(2)).state_dict()
    bare = collections.OrderedDict(epoch=3)
    bare._metadata = {"": {"version": 1, "made": object, 5: 1}, 6: {"version": 2}, "0": 3}  # type: ignore[attr-defined]
    plain = collections.OrderedDict(dict.fromkeys(state, 0))
    plain._metadata = state._metadata  # type: ignore[attr-defined]

    assert value_of(pickle.dumps(plain)).notes == {"": {"version": 1}, "0": {"version": 2}}
    assert value_of(pickle.dumps(bare)) == StateDictNode({"epoch": 3})
    assert value_of(pickle.dumps(bare)).notes == {"": {"version": 1}}
    assert value_of(pickle.dumps(collections.OrderedDict())).notes == {}
    assert read(pickle.dumps(plain)).calls == ()


@pytest.mark.parametrize(("pickled", "id"), [(b"I7\nQ.", 7), (b"Pseven\n.", "seven")])
def test_a_reference_to_a_storage_keeps_its_name(pickled: bytes, id: Any) -> None:
    assert value_of(pickled) == Persistent(id)


def test_what_stands_behind_the_end_is_left_to_the_next_reader() -> None:
    stream = PickleBytes(pickle.dumps("one") + pickle.dumps("two"))

    assert [read_pickle(stream).value, read_pickle(stream).value] == ["one", "two"]


@pytest.mark.parametrize(
    ("pickled", "said"),
    [
        (b"", "1 bytes are declared at byte 0, 0 are left"),
        (b"N", "1 bytes are declared at byte 1, 0 are left"),  # no STOP
        (b".", "not a valid pickle"),  # nothing to return
        (b"\xff.", "not a valid pickle"),
        (b"(I1\nI2\n]I3\n(s.", "not a valid pickle"),  # a mark as a value
        (b"I1\nt.", "no mark on its stack"),
        (b"t.", "not a valid pickle"),
        (b"I1\n\x86.", "its stack is empty"),  # a tuple of two out of one
        (b"I1\nI2\nI3\ns.", "items for a int"),
        (b"I1\nI2\nb.", "a state for a int"),
        (b"]I2\nb.", "a state for a list"),
        (b"(I1\nd.", "not a valid pickle"),  # a key without a value
        (b"h\x05.", "not a valid pickle"),  # recalls what was never memoized
        (b"X\xff\xff\xff\x03abc.", "67,108,863 bytes are declared at byte 5, 4 are left"),
        (b"B\x01\x00\x00\x04abc.", "a string of 67,108,865 bytes is declared at byte 5"),
        (b"\x8e" + struct.pack("<Q", 10**13) + b"abc.", "a string of 10,000,000,000,000 bytes"),
        (b"cos\nsystem", "a line that does not end"),
    ],
)  # fmt: skip
def test_what_is_no_pickle_is_damage(pickled: bytes, said: str) -> None:
    with pytest.raises(Damaged, match=said):
        read(pickled)


def test_a_string_may_be_as_long_as_all_that_is_left() -> None:
    assert value_of(b"X\x03\x00\x00\x00abc.") == "abc"
    assert PickleBytes(b"abc").read(3) == b"abc"


def test_a_line_may_be_long_but_not_without_end() -> None:
    assert len(value_of(b"S'" + b"a" * 60_000 + b"'\n.")) == 60_000
    with pytest.raises(Damaged, match="a line that does not end, at byte 1"):
        read(b"S'" + b"a" * 70_000 + b"'\n.")


def test_the_number_of_opcodes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opcodes, "MAX_OPCODES", 4)

    assert value_of(b"N0N.") is None  # the fourth
    with pytest.raises(Damaged, match="more than 4 pickle opcodes"):
        read(b"N0N0N.")


def test_two_calls_of_the_same_are_two() -> None:
    assert FunctionCall("f", (1,)) != FunctionCall("f", (1,))


@pytest.mark.parametrize("protocol", range(3))
def test_an_ordered_dictionary_as_python_2_wrote_it(protocol: int) -> None:
    """Its items as a list of lists, which is a call with arguments; many published weights are of that time."""
    written = Made(collections.OrderedDict, ([["a", 1], ["b", 2]],), {"_metadata": {"a": {"version": 1}}})

    found = read(pickle.dumps(written, protocol))

    assert found.value == {"a": 1, "b": 2}
    assert found.value.notes == {"a": {"version": 1}}
    assert found.calls == ()
