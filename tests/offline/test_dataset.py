"""Datasets: whatever gives samples, and what a sample that cannot be had costs."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import rankwise
from rankwise import train
from rankwise.errors import UnreadableInput, UsageError
from rankwise.offline.row_batches import Batch, Selection
from rankwise.offline.source import batches_of, open_source


class Flawed(Dataset[Any]):
    """Some samples cannot be had."""

    def __init__(self, bad: range, count: int = 10) -> None:
        self.bad, self.count = bad, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> dict[str, Any]:
        if i in self.bad:
            raise OSError("gone")
        return {"x": torch.full((2,), float(i)), "name": f"n{i}"}


class Stream(IterableDataset[Any]):
    """Iterable, though it has a length, and a __getitem__ that torch's Dataset brings along."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(5.0))

    def __len__(self) -> int:
        return 5


def batches(dataset: Any, size: int, columns: tuple[str, ...] = (), keep: tuple[str, ...] = (), first_row: int = 0) -> list[Batch]:
    return list(batches_of(open_source(dataset, Selection(columns, keep)), size, first_row))


@pytest.mark.parametrize("columns", [(), ("x",)])
@pytest.mark.parametrize("size", [1, 3, 4, 10])
@pytest.mark.parametrize("bad", [range(1), range(2, 3), range(3, 9), range(8, 10)])
def test_a_sample_that_raises_is_one_failed_row(columns: tuple[str, ...], size: int, bad: range) -> None:
    found = batches(Flawed(bad), size, columns, ("name",))

    broken = {batch.first_row + i: why for batch in found for i, why in batch.broken.items()}
    names = [name for batch in found for i, name in enumerate(batch.kept["name"]) if i not in batch.broken]
    assert broken == dict.fromkeys(bad, "OSError: gone")
    assert names == [f"n{i}" for i in range(10) if i not in bad]


def test_samples_that_all_raise_are_failed_rows() -> None:
    assert [sorted(batch.broken) for batch in batches(Flawed(range(40), 40), 20, (), ("name",))] == [list(range(20))] * 2


SAMPLES = [{"x": torch.ones(2), "id": 1}, {"x": torch.ones(2)}, {"id": 3}]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("samples", [SAMPLES, SAMPLES[::-1]])
def test_a_key_that_is_missing_fails_its_row_if_the_model_wants_it(samples: list[dict[str, Any]], size: int) -> None:
    found = batches(samples, size, ("x",), ("id",))

    broken = [batch.first_row + i for batch in found for i in batch.broken]
    assert broken == [i for i, sample in enumerate(samples) if "x" not in sample]
    assert [value for batch in found for value in batch.kept["id"]] == [sample.get("id") for sample in samples]


def test_a_column_that_no_sample_has_is_a_finding() -> None:
    with pytest.raises(UsageError, match="the dataset has no column 'y'"):
        batches(SAMPLES, 2, ("y",))


def test_a_column_named_twice_is_a_finding() -> None:
    with pytest.raises(UsageError, match="named twice"):
        batches(SAMPLES, 2, ("x", "x"))


def test_a_column_cannot_stand_for_files() -> None:
    """The name is that of a folder's paths, which are opened where the model is."""
    with pytest.raises(UsageError, match="'__file__'"):
        batches([{"__file__": "/etc/hostname", "x": 1.0}], 4)


def test_samples_are_asked_for_once() -> None:
    asked = []

    class Counted(Flawed):
        def __getitem__(self, i: int) -> dict[str, Any]:
            asked.append(i)
            return super().__getitem__(i)

    batches(Counted(range(0)), 4, ("x",))

    assert asked == list(range(10))


@pytest.mark.parametrize("first_row", [0, 2, 4])
def test_an_iterable_dataset_of_torch_is_iterated(first_row: int) -> None:
    found = batches(Stream(), 2, first_row=first_row)

    assert np.concatenate([batch.columns["0"] for batch in found]).tolist() == list(range(first_row, 5))


def test_an_iterator_that_raises_is_the_end_and_says_where() -> None:
    def samples() -> Iterator[float]:
        yield from [0.0, 1.0, 2.0]
        raise KeyError("shard 7")

    with pytest.raises(UnreadableInput, match="at row 3") as caught:
        batches(samples(), 2)

    assert "shard 7" in caught.value.finding.why


class Wrapping:
    """Says nothing of it, but can be read only once, as what holds an open file."""

    def __init__(self, samples: Iterator[Any]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        yield from self.samples


@pytest.mark.parametrize("batch", ["auto", 8])
def test_what_wraps_a_generator_loses_no_row(tmp_path: Path, batch: int | str) -> None:
    done = rankwise.predict(lambda: torch.nn.Identity(), Wrapping(iter(np.arange(300.0))), tmp_path / "out.npy", workers=0, batch=batch)

    assert done.rows == 300
    assert np.load(tmp_path / "out.npy").tolist() == list(range(300))


def test_a_sample_may_be_any_mapping() -> None:
    found = batches([UserDict(x=1.0, y=2.0)], 1, ("y",))

    assert found[0].columns["y"].tolist() == [2.0]


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("given", [list, iter])
def test_a_sample_of_more_parts_than_the_first_is_one_failed_row_and_not_cut_short(kind: Any, given: Any) -> None:
    """Lists of token ids, say, of which the model would get as many as the first list has."""
    samples = [kind([1, 2]), kind([3, 4, 5]), kind([6, 7])]

    (found,) = batches(given(samples), 3)
    (named,) = batches(given(samples), 3, ("0",), ("1",))

    assert list(found.broken) == [1] and "3 parts, where the first sample has 2" in found.broken[1]
    assert not named.broken and named.columns["0"].tolist() == [1, 3, 6]


def test_entries_that_are_masked_fail_their_row() -> None:
    masked = np.ma.masked_equal(np.arange(6.0).reshape(3, 2), 3.0)

    (found,) = batches(masked, 3)
    (alone,) = batches(masked[:, 1], 3)

    assert list(found.broken) == list(alone.broken) == [1]
    assert "masked entries" in found.broken[1]
    assert found.columns["0"][[0, 2]].tolist() == [[0.0, 1.0], [4.0, 5.0]]


class Frame:
    """Has rows and columns as a table of polars has, where [i] is a table of one row."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> Frame:
        return self

    def iter_columns(self) -> Iterator[Any]:
        return iter(())


class CachingLoader(Dataset[Any]):
    """Gives single samples, for all its name."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Any:
        return self.dataset[i]


def test_a_dataset_may_be_called_a_loader() -> None:
    assert batches(CachingLoader([1.0, 2.0]), 2)[0].length == 2


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (train.Loader(torch.utils.data.TensorDataset(torch.arange(4)), batch_size=2), "a Loader gives batches"),
        (DataLoader(Flawed(range(0))), "a DataLoader gives batches"),
        ({"x": [1, 2]}, "a dict has no rows"),
        (b"x.npy", "a bytes has no"),
        (pa.table({"x": [1]}), "a Table has no"),
        (Frame(), "a Frame has no"),
        (torch.tensor(1.0), "without a length"),
        (3, "neither"),
    ],
)
def test_what_has_no_rows_is_refused(given: Any, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        open_source(given, Selection())


DTYPES = [torch.bfloat16, torch.float8_e4m3fn, torch.float16, torch.float64, torch.int8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_all_kinds(dtype: torch.dtype) -> None:
    (batch,) = batches([torch.tensor([0.0, 1.0]).to(dtype).requires_grad_(dtype == torch.float16)] * 3, 3)

    assert batch.columns["0"].tolist() == [[0, 1]] * 3
    assert batch.columns["0"].dtype == (np.float32 if dtype in DTYPES[:2] else torch.empty(0, dtype=dtype).numpy().dtype)


def test_tensors_of_different_shapes_stay_tensors_for_the_model_and_are_kept_as_lists() -> None:
    samples = [{"x": torch.ones(n), "n": n, "s": np.float32(0.5)} for n in (1, 2)]
    (batch,) = batches(samples, 2, ("x",), ("x", "n", "s"))

    assert all(isinstance(value, torch.Tensor) for value in batch.columns["x"])
    assert (batch.kept["x"], batch.kept["n"], batch.kept["s"].tolist()) == ([[1.0], [1.0, 1.0]], [1, 2], [0.5, 0.5])


def test_arrays_in_another_order_of_bytes() -> None:
    (batch,) = batches([np.ones(2, ">f4")] * 2, 2)

    assert batch.columns["0"].dtype.isnative and batch.columns["0"].dtype == np.float32


def test_a_dataset_cannot_be_recognised_only_resumed() -> None:
    one, two = (open_source([torch.tensor(value)] * 3, Selection()) for value in (1.0, 9.0))

    assert one.identity == two.identity and not one.is_recognisable


@pytest.mark.parametrize("buffer", [np.zeros(2), torch.zeros(2), [0.0, 0.0]], ids=["array", "tensor", "list"])
@pytest.mark.parametrize("part", ["x", "1"])
def test_samples_in_one_buffer_that_is_filled_again_are_rows_of_their_own(buffer: Any, part: str) -> None:
    def samples() -> Iterator[Any]:
        for i in range(5):
            buffer[0] = float(i)
            yield {"x": buffer} if part == "x" else (i, buffer)

    found = batches(samples(), 3, (part,), (part,))

    assert [float(value[0]) for batch in found for value in batch.columns[part]] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [float(value[0]) for batch in found for value in batch.kept[part]] == [0.0, 1.0, 2.0, 3.0, 4.0]
