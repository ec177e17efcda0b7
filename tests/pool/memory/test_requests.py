"""Values taken apart and put together, without a process."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rankwise.pool.memory.encoding import Uneven, has_rows, leaves  # noqa: E402
from rankwise.pool.memory.requests import InputEncoder, Reader, cut_value, join, split, wants_tensors  # noqa: E402
from rankwise.pool.memory.shared_memory import Arena, Segment  # noqa: E402
from tests.pool.models import Named  # noqa: E402


class Output(OrderedDict[str, Any]):
    """As transformers make them: what is an item is an attribute too."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


def rows() -> Any:
    return torch.arange(12.0).view(6, 2)


VALUES: dict[str, Any] = {
    "tensor": rows(),
    "array": rows().numpy(),
    "nested": {"a": (rows(), [rows().numpy()]), "b": None, "c": "same"},
    "named": Named(rows(), [rows()]),
    "torch's own": rows().max(1),
    "ordered": OrderedDict(b=rows(), a=rows()),
    "default": defaultdict(list, a=rows()),
    "output": Output(logits=rows(), loss=None),
}


@pytest.mark.parametrize("name", VALUES)
def test_what_is_cut_and_joined_is_what_it_was(name: str) -> None:
    value = VALUES[name]
    parts = [cut_value(value, start, stop) for start, stop in ((0, 3), (3, 4), (4, 6))]
    back = join(parts)

    assert [has_rows(part, count) for part, count in zip(parts, (3, 1, 2))] == [True] * 3
    assert type(back) is type(value) and list(map(type, leaves(back))) == list(map(type, leaves(value)))
    assert all(np.array_equal(a, b) if hasattr(a, "shape") else a == b for a, b in zip(leaves(back), leaves(value)))


@pytest.mark.parametrize("edges", [[0, 2, 4, 6], [0, 1, 4, 6], [0, 6]])
@pytest.mark.parametrize("shape", [(6,), (6, 2), (6, 0), (6, 0, 3)])
def test_results_of_a_bunch_are_cut_whatever_their_width(shape: tuple[int, ...], edges: list[int]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape)
    for whole in (array, np.asfortranarray(array), torch.from_numpy(array)):
        parts = split(whole, edges)
        assert [type(part) for part in parts] == [type(whole)] * (len(edges) - 1)
        assert [part.tolist() for part in parts] == [whole[start:stop].tolist() for start, stop in pairwise(edges)]


def test_a_dict_of_its_own_kind_stays_one() -> None:
    cut = cut_value(VALUES["output"], 0, 2)
    assert cut.logits.shape == (2, 2) and cut["logits"] is cut.logits
    assert VALUES["output"].logits.shape == (6, 2) and len(VALUES["output"]["logits"]) == 6


@pytest.mark.parametrize(
    "parts",
    [
        [{"n": 1, "y": rows()}, {"n": 2, "y": rows()}],
        [{"y": rows()}, {"z": rows()}],
        [[rows()], [rows(), rows()]],
        [(rows(),), [rows()]],
        [{"y": rows()}, {"y": None}],
        [{"y": rows(), "x": lambda: 1}, {"y": rows(), "x": lambda: 1}],
        [rows(), rows().long()],
        [rows().numpy(), rows().double().numpy()],
        [rows(), rows()[:, :1]],
    ],
)
def test_parts_that_do_not_make_one_value_are_not_joined(parts: list[Any]) -> None:
    with pytest.raises(Uneven):
        join(parts)


@pytest.mark.parametrize("value", [3, [1.0, 2.0], {"y": torch.tensor(1.0)}, [rows(), rows()[:3]]])
def test_what_has_no_row_for_each_row(value: Any) -> None:
    assert not has_rows(value, 6)


def test_results_that_are_kept_leave_half_of_the_workers_slots_free() -> None:
    segment, freed = Segment.create(1 << 20, "test"), []
    reader = Reader([segment], freed.append, Arena(1 << 30), soft_limit=1 << 30, slots=8)
    task = SimpleNamespace(to_tensor=False, slots=())

    kept = [reader.value(task, ("N", "uint8", (1 << 16,), ("o", 0, 0, 1 << 16, slot))) for slot in range(6)]
    assert freed == [4, 5]  # these are copies

    del kept[0]
    kept.append(reader.value(task, ("N", "uint8", (1 << 16,), ("o", 0, 0, 1 << 16, 6))))
    assert freed == [4, 5, 0]
    segment.close()


def test_an_array_whose_numbers_are_in_a_file_is_one_as_any_other(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6.0).reshape(3, 2))
    rows = np.load(tmp_path / "x.npy", mmap_mode="r")

    for value in (rows, rows[1]):
        node, _, _, to_tensor = InputEncoder(Arena(1 << 20), lambda: 0).encode("m", (value,))
        assert not to_tensor and node == ("(", (("N", "float64", value.shape, value.tobytes()),))
    assert not wants_tensors(([rows],)) and wants_tensors((rows, torch.ones(1)))
