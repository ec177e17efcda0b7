"""The weights of torch.export programs, as their archive describes them; damage is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankwise.weights.exported import CONFIG, read_exported
from rankwise.weights.tensor_records import Damaged, Extent, TensorRecord
from rankwise.weights.zipped import Archive

PATH = Path("net.pt2")


def entry(dtype: int = 7, sizes: tuple[Any, ...] = (2, 3), strides: tuple[Any, ...] = (3, 1), offset: int = 0, **more: Any) -> Any:
    meta = {
        "dtype": dtype,
        "sizes": [{"as_int": size} for size in sizes],
        "strides": [{"as_int": stride} for stride in strides],
        "storage_offset": {"as_int": offset},
    }
    return {"path_name": "weight_0", "tensor_meta": meta, **more}


def read(entries: Any, nbytes: int = 24) -> dict[str, TensorRecord]:
    config = json.dumps({"config": entries}).encode()
    data = config + bytes(nbytes)
    extents = {CONFIG: Extent(PATH, 0, len(config)), "data/weights/weight_0": Extent(PATH, len(config), nbytes)}
    return dict(read_exported(PATH, Archive(data, extents)).tree)


def test_each_tensor_lies_where_the_program_says() -> None:
    found = read({"a": entry(), "b": entry(7, (3,), (1,), 3), "half": entry(13, (2,), (1,))})

    assert {name: (record.dtype, record.shape, record.strides, record.first) for name, record in found.items()} == {
        "a": ("float32", (2, 3), (3, 1), 0),
        "b": ("float32", (3,), (1,), 3),
        "half": ("bfloat16", (2,), (1,), 0),
    }
    assert found["a"].storage == found["b"].storage


def test_what_is_kept_as_a_pickle_is_named_and_not_read() -> None:
    found = read({"a": entry(use_pickle=True), "b": entry(99)})

    assert [(record.dtype, bool(record.unreadable)) for record in found.values()] == [("float32", True), ("unknown", True)]


def test_a_program_without_weights_has_none() -> None:
    assert read_exported(PATH, Archive(b"", {})).tree == {}


@pytest.mark.parametrize(
    "entries",
    [
        {"a": entry(sizes=(2, 4), strides=(4, 1))},
        {"a": entry(offset=1)},
        {"a": entry(offset=-1)},
        {"a": entry(sizes=(-1, 3))},
        {"a": entry(strides=(-3, 1))},
        {"a": entry(sizes=(1.0, 3))},
        {"a": {**entry(), "path_name": "weight_1"}},
        {"a": {"path_name": "weight_0"}},
        {"a": []},
        [],
        None,
    ],
    ids=str,
)
def test_what_contradicts_itself_is_damage(entries: Any) -> None:
    with pytest.raises(Damaged):
        read(entries)
