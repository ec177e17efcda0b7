"""Calls of a torch pickle as records of tensors: read, never run, and never beyond their storage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankwise.weights.opcodes import FunctionCall, Global, Persistent
from rankwise.weights.rebuilding import check_bounds, plain_tree, sizes_of
from rankwise.weights.tensor_records import Damaged, Extent, StateDictNode, TensorRecord, Unbuilt

STORAGE = Extent(Path("a"), 0, 64)
REFERENCE = Persistent(("storage", Global("torch", "FloatStorage"), "0", "cpu", 16))


def call(name: str, *args: Any, **facts: Any) -> FunctionCall:
    module, _, function = name.rpartition(".")
    return FunctionCall(Global(module, function), args, **facts)


def tensor(reference: Any = REFERENCE, first: Any = 0, shape: Any = (4, 4), strides: Any = (4, 1), *more: Any) -> FunctionCall:
    return call("torch._utils._rebuild_tensor_v2", reference, first, shape, strides, False, StateDictNode(), *more)


def plain(value: Any) -> Any:
    return plain_tree(value, lambda key, dtype, nbytes: replace(STORAGE, nbytes=nbytes))


MATRIX = TensorRecord("float32", (4, 4), STORAGE, 0, (4, 1))


@pytest.mark.parametrize(
    "value",
    [
        tensor(),
        call("torch._utils._rebuild_tensor", REFERENCE, 0, (4, 4), (4, 1)),
        call("torch._utils._rebuild_parameter", tensor(), True, StateDictNode()),
        call("torch._utils._rebuild_device_tensor_from_cpu_tensor", tensor(), Global("torch", "float32"), "xla:0", False),
        call("torch._tensor._rebuild_from_type_v2", Global("torch._utils", "_rebuild_tensor_v2"), Global("a", "Mine"), tensor().args, {}),
        tensor(REFERENCE, 0, call("torch.Size", (4, 4))),
        tensor(REFERENCE, 0, (4, 4), (4, 1), {}),
        tensor(REFERENCE, 0, (4, 4), (4, 1), {"conj": False}),
    ],
)
def test_every_way_to_write_a_tensor_is_one_record(value: FunctionCall) -> None:
    assert plain({"w": value}) == {"w": MATRIX}


def test_a_dtype_that_has_no_storage_of_its_own() -> None:
    reference = Persistent(("storage", Global("torch.storage", "UntypedStorage"), "0", "cpu", 64))
    args = (reference, 0, (4, 4), (4, 1), False, StateDictNode())

    assert plain(call("torch._utils._rebuild_tensor_v3", *args, Global("torch", "uint32"))) == replace(MATRIX, dtype="uint32")
    assert "uint3 is not known" in plain(call("torch._utils._rebuild_tensor_v3", *args, Global("torch", "uint3"))).unreadable


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (tensor(REFERENCE, 0, (4, 4), (4, 1), {"conj": True}), "lazily conjugated"),
        (call("torch._utils._rebuild_sparse_tensor", 0), "a sparse tensor, which has no plain storage"),
        (call("torch._utils._rebuild_qtensor", 0), "a qtensor"),
    ],
)
def test_a_tensor_without_plain_bytes_says_why(value: FunctionCall, why: str) -> None:
    assert why in plain(value).unreadable


def storage(**changed: Any) -> Persistent:
    parts = {"kind": Global("torch", "FloatStorage"), "key": "0", "count": 16, "view": (), **changed}
    return Persistent(("storage", parts["kind"], parts["key"], "cpu", parts["count"], *parts["view"]))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (tensor("0"), "refers to no storage"),
        (tensor(Persistent("0")), "refers to no storage"),
        (tensor(Persistent(("storage", 1))), "refers to no storage"),
        (tensor(storage(kind=Global("torch", "MyStorage"))), "a storage is described wrongly"),
        (tensor(storage(kind="FloatStorage")), "a storage is described wrongly"),
        (tensor(storage(key=0)), "a storage is described wrongly"),
        (tensor(storage(count=-1)), "a storage is described wrongly"),
        (tensor(storage(count="16")), "a storage is described wrongly"),
        (tensor(storage(view=(("a", 0, 1),))), "views of storages"),
        (tensor(storage(count=15)), "needs 64 bytes of a storage that has 60"),
        (tensor(REFERENCE, 1), "needs 68 bytes"),
        (tensor(REFERENCE, -1), "do not belong together"),
        (tensor(REFERENCE, 0, (4, 4), (1,)), "do not belong together"),
        (tensor(REFERENCE, 0, (-4, 4)), "is not a shape"),
        (tensor(REFERENCE, 0, 4), "a tensor is described wrongly"),
        (call("torch._utils._rebuild_tensor_v2", REFERENCE), "a tensor is described wrongly"),
    ],
)
def test_a_tensor_that_cannot_be_is_damage(value: FunctionCall, said: str) -> None:
    with pytest.raises(Damaged, match=said):
        plain(value)


def test_a_storage_may_be_described_as_no_view() -> None:
    assert plain(tensor(storage(view=(None,)))) == MATRIX


def test_bounds_are_those_of_the_last_element() -> None:
    check_bounds(replace(MATRIX, shape=(4, 4), strides=(1, 4)))
    check_bounds(replace(MATRIX, shape=(1000, 4), strides=(0, 1)))
    check_bounds(replace(MATRIX, shape=(0, 1000)))
    with pytest.raises(Damaged):
        check_bounds(replace(MATRIX, strides=(5, 1)))


@pytest.mark.parametrize("sizes", [(1 << 62,), (1,) * 65, (1.0,), ("1",)])
def test_what_is_no_shape(sizes: Any) -> None:
    with pytest.raises(Damaged, match="is not a shape"):
        sizes_of(sizes)
    assert sizes_of([(1 << 62) - 1, *[0] * 63])[0] == (1 << 62) - 1
    assert sizes_of(call("torch.Size")) == ()


def test_what_only_running_code_could_make_is_not_built() -> None:
    found = plain({"args": call("argparse.Namespace"), "name": Global("a", "b"), "size": call("torch.Size", (2, 3))})

    assert isinstance(found["args"], Unbuilt) and "argparse.Namespace" in repr(found["args"])
    assert isinstance(found["name"], Unbuilt)
    assert found["size"] == (2, 3)


def test_dictionaries_stay_what_they_are() -> None:
    counter = call("collections.Counter", items=["a", 1, "b", 2])
    state = StateDictNode({"w": 1}, {"": {"version": 2}})

    found = plain({"counts": counter, "state": state, "list": [1, (2,)]})

    assert found == {"counts": {"a": 1, "b": 2}, "state": {"w": 1}, "list": [1, (2,)]}
    assert found["state"].notes == {"": {"version": 2}}


def test_keys_that_are_no_plain_data_stay_different() -> None:
    assert list(plain({(1,): 1, (2,): 2, 10**200: 3, 1 << 199: 4})) == ["tuple 0", "tuple 1", "int 2", 1 << 199]


def test_what_contains_itself_or_has_no_end_is_not_followed() -> None:
    own: list[Any] = []
    own.append(own)
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    shared = tensor()

    assert "contains itself" in repr(plain(own))
    assert "nested too deeply" in repr(plain(deep))
    one, other = plain([shared, shared])
    assert one is other


def module(parameters: dict[str, Any], parts: dict[str, Any], **more: Any) -> FunctionCall:
    return call("a.Net", state={"_parameters": parameters, "_buffers": {}, "_modules": parts, **more})


def test_a_module_that_was_saved_whole_is_its_state_dict() -> None:
    inner = module({"weight": tensor(), "bias": None}, {})
    buffers = {"mean": tensor(), "passing": tensor()}
    outer = module({}, {"0": inner, "1": None, "2": inner}, _buffers=buffers, _non_persistent_buffers_set=["passing"])

    assert plain(outer) == dict.fromkeys(("mean", "0.weight", "2.weight"), MATRIX)


def test_what_only_looks_like_a_module_is_not_built() -> None:
    assert isinstance(plain(call("a.Net", state={"_parameters": {"weight": tensor()}, "_buffers": {}})), Unbuilt)
