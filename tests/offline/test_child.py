"""Where the model is: what it gets, what it may return, and which rows fail."""

from __future__ import annotations

import dataclasses
import datetime
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rankwise.offline.child import BatchRunner, as_columns, build_runner
from rankwise.offline.row_batches import as_column

Pair = namedtuple("Pair", ["mean", "label"])


@dataclasses.dataclass
class Found:
    boxes: torch.Tensor
    score: float


class Net(nn.Module):
    """A model with a dtype, and what it does with its inputs."""

    def __init__(self, does: Callable[..., Any], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1, dtype=dtype)
        self._does = does

    def forward(self, *inputs: Any) -> Any:
        return self._does(self.linear, *inputs)


def worked(outcome: dict[str, Any]) -> list[int]:
    """The rows that worked."""
    return [row for begin, end in outcome["spans"] for row in range(begin, end)]


def run(does: Any, columns: dict[str, Any], **options: Any) -> dict[str, Any]:
    model = does if isinstance(does, nn.Module) else (lambda *inputs: does(*inputs))
    return BatchRunner(model, "", **{"stack": True, **options})(columns, len(next(iter(columns.values()))))


X = np.arange(8, dtype=np.float32).reshape(4, 2)


@pytest.mark.parametrize(
    ("outputs", "columns"),
    [
        (torch.ones(2, 3, dtype=torch.bfloat16), {"output": [[1.0] * 3] * 2}),
        (torch.ones(2).to(torch.float8_e4m3fn), {"output": [1.0, 1.0]}),
        (torch.tensor([1 + 2j, 3]).conj(), {"output": [1 - 2j, 3]}),
        (torch.eye(2).to_sparse(), {"output": [[1.0, 0.0], [0.0, 1.0]]}),
        (torch.ones(2, 0), {"output": [[], []]}),
        (np.ones(2, ">i2"), {"output": [1, 1]}),
        (np.array(["a", "bb"]), {"output": ["a", "bb"]}),
        (np.array(["a", {"b": np.float32(0.5)}], object), {"output": ["a", {"b": 0.5}]}),
        (np.array(["2024-02-29", "2024-03-01"], "datetime64[D]"), {"output": ["2024-02-29", "2024-03-01"]}),
        ([np.float32(1.5), np.float32(2)], {"output": [1.5, 2.0]}),
        ([torch.tensor(1), torch.tensor(2)], {"output": [1, 2]}),
        ([{"boxes": torch.ones(1, 4), "score": torch.tensor(0.5)}, {"boxes": torch.ones(0, 4)}],
         {"output": [{"boxes": [[1.0] * 4], "score": 0.5}, {"boxes": []}]}),
        ([Found(torch.ones(1), 0.5), Pair(torch.ones(1), "a")],
         {"output": [{"boxes": [1.0], "score": 0.5}, {"mean": [1.0], "label": "a"}]}),
        ([b"\0\xff", datetime.date(2024, 2, 29)], {"output": ["AP8=", "2024-02-29"]}),
        ((torch.ones(2),), {"output_0": [1.0, 1.0]}),
        (Pair(torch.ones(2), ["a", "b"]), {"mean": [1.0, 1.0], "label": ["a", "b"]}),
        (Found(torch.ones(2), torch.zeros(2)), {"boxes": [1.0, 1.0], "score": [0.0, 0.0]}),
        (OrderedDict(loss=None, logits=torch.ones(2)), {"logits": [1.0, 1.0]}),
    ],
)  # fmt: skip
def test_what_a_model_returns_becomes_columns(outputs: Any, columns: dict[str, Any]) -> None:
    found = as_columns(outputs, 2)

    assert {name: column.tolist() if isinstance(column, np.ndarray) else column for name, column in found.items()} == columns
    assert all(column.dtype.isnative and column.dtype != object for column in found.values() if isinstance(column, np.ndarray))


def test_tensors_of_any_length_keep_their_dtype() -> None:
    (column,) = as_columns([torch.ones(1, dtype=torch.int32), torch.ones(2, dtype=torch.int32)], 2).values()

    assert [(row.dtype, row.shape) for row in column] == [(np.int32, (1,)), (np.int32, (2,))]


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (None, "nothing"),
        ({"loss": None}, "nothing"),
        (torch.tensor(1.5), "a single number as 'output' for 4 rows"),
        ([torch.ones(4, 3), torch.ones(4, 2)], "a list of 2 tensors of 4 rows each; return them as a tuple"),
        ({"state": (torch.ones(1, 4, 3), torch.ones(1, 4, 2))}, "a list of 2 tensors of 4 rows each; return them as a tuple"),
        (torch.ones(2, 4, 3), "'output' with 4 rows in its second dimension ([2, 4, 3])"),
        ({"a": {"b": torch.ones(4)}}, "a dict as 'a', where a tensor"),
        (1.5, "a float as 'output'"),
    ],
)
def test_what_cannot_be_rows_fails_all_of_them_and_is_not_tried_in_halves(outputs: Any, words: str) -> None:
    runs = []
    outcome = run(lambda x: runs.append(len(x)) or outputs, {"x": X})

    assert [error[0] for error in outcome["errors"]] == [0, 1, 2, 3] and worked(outcome) == []
    assert words in outcome["errors"][0][2]
    assert runs == [4]


@pytest.mark.parametrize("count", [1, 3, 4])
def test_a_model_that_squeezes_its_output_gives_a_number_for_each_row(count: int) -> None:
    def squeezed(x: torch.Tensor) -> torch.Tensor:
        if (x == 4).any():
            raise ValueError("the third row")
        return x[:, :1].squeeze()

    outcome = run(squeezed, {"x": X[:count]})

    assert worked(outcome) == [row for row in range(count) if row != 2]
    assert np.concatenate([piece["output"] for piece in outcome["pieces"]]).tolist() == [X[row, 0] for row in worked(outcome)]


class Compiled(nn.Module):
    """As torch.compile wraps a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._orig_mod = model

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self._orig_mod(*inputs, **named)


class Masked(nn.Module):
    """Takes its inputs in another order than tokenizers give them, and does without some."""

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None, kinds: torch.Tensor | None = None) -> torch.Tensor:
        return ids * 100 + (0 if mask is None else mask * 10) + (0 if kinds is None else kinds)


@pytest.mark.parametrize(
    ("names", "output"), [("ids kinds mask", 123), ("mask ids", 120), ("kinds ids", 103), ("0 1 2", 123), ("0 kinds", 130)]
)
def test_inputs_go_by_name_where_the_model_has_a_parameter_of_each(names: str, output: int) -> None:
    numbers = {"ids": 1, "mask": 2, "kinds": 3}
    columns = {name: np.full((2, 1), numbers.get(name, place)) for place, name in enumerate(names.split(), start=1)}

    for model in (Masked(), Compiled(Masked())):
        assert run(model, columns)["pieces"][0]["output"].tolist() == [[output]] * 2


def test_the_inputs_of_a_program_go_by_name_too() -> None:
    one, two, three = (torch.full((2, 1), number) for number in (1, 2, 3))
    program = torch.export.export(Masked(), (one, two, three)).module()

    assert run(program, {"ids": one, "kinds": three, "mask": two})["pieces"][0]["output"].tolist() == [[123], [123]]


def test_a_row_whose_output_cannot_be_written_costs_itself() -> None:
    outcome = run(lambda x: [object() if row[0] == 4 else {"sum": row.sum()} for row in x], {"x": X})

    assert worked(outcome) == [0, 1, 3]
    ((row, kind, message),) = outcome["errors"]
    assert (row, kind) == (2, "ValueError") and "'output' that cannot be written: a object" in message


def test_whole_numbers_reach_a_linear_layer_and_an_embedding_alike() -> None:
    linear = BatchRunner(Net(lambda linear, x: linear(x)), "", stack=True)
    embedding = BatchRunner(nn.Embedding(4, 2), "", stack=True)
    whole = {"x": np.array([[1, 0], [2, 3]])}

    expected = linear({"x": whole["x"].astype(np.float32)}, 2)["pieces"][0]["output"]
    assert [linear(whole, 2)["pieces"][0]["output"].tolist() for _ in range(2)] == [expected.tolist()] * 2
    assert embedding(whole, 2)["pieces"][0]["output"].shape == (2, 2, 2)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64"])
def test_a_vocabulary_takes_integers_of_any_width(dtype: str) -> None:
    embedding = nn.Embedding(4, 2)
    ids = np.array([[1, 0], [2, 3]])

    (piece,) = run(embedding, {"x": ids.astype(dtype)})["pieces"]

    assert np.array_equal(piece["output"], embedding(torch.from_numpy(ids)).detach().numpy())


class Named(nn.Module):
    """Wants indices and numbers, which a file that has only whole ones does not tell apart."""

    def __init__(self) -> None:
        super().__init__()
        self.names, self.linear = nn.Embedding(4, 2), nn.Linear(3, 2)

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.names(ids) + self.linear(x)


@pytest.mark.parametrize("ids", ["int64", "uint8", "float64"])
@pytest.mark.parametrize("x", ["int64", "int16", "float32"])
def test_indices_and_numbers_may_both_be_whole(ids: str, x: str) -> None:
    model = Named()
    columns = {"ids": np.array([3, 1]), "x": np.arange(6).reshape(2, 3)}
    expected = model(torch.from_numpy(columns["ids"]), torch.from_numpy(columns["x"]).float()).tolist()

    outcome = run(model, {"ids": columns["ids"].astype(ids), "x": columns["x"].astype(x)})

    assert worked(outcome) == [0, 1]
    assert np.allclose(np.concatenate([piece["output"] for piece in outcome["pieces"]]), expected)


def test_a_bad_row_of_whole_numbers_costs_itself_and_says_both_reasons() -> None:
    runner = BatchRunner(nn.Embedding(4, 2), "", stack=True)

    outcome = runner({"x": np.array([0, 9, 3])}, 3)

    assert worked(outcome) == [0, 2]
    ((row, kind, message),) = outcome["errors"]
    assert (row, kind) == (1, "IndexError") and "out of range" in message and "and as torch.float32" in message


def test_a_missing_value_is_named_where_the_model_fails_on_it() -> None:
    """A column with one is no column of numbers, so that the model complains of something else."""
    outcome = BatchRunner(Net(lambda linear, x: linear(x)), "", stack=True)({"a": [1.0, None, 3.0], "b": np.ones(3)}, 3)

    assert worked(outcome) == [0, 2]
    ((row, _, message),) = outcome["errors"]
    assert row == 1 and message.endswith("; 'a' is missing in this row")


@pytest.mark.parametrize("missing", [[1.0, None, 3.0], [None, None, None]])
def test_columns_of_a_matrix_are_no_inputs_of_their_own_where_a_number_is_missing(missing: list[float | None]) -> None:
    """The second one would be an option of this model, which then gives the row a number all the same."""

    def size(x: torch.Tensor, is_scaled: Any = False) -> torch.Tensor:
        return x.sum(-1) / (10 if is_scaled else 1)

    outcome = BatchRunner(size, "", stack=True)({"a": np.full(3, 5.0), "b": missing}, 3)

    assert [row for row, _, _ in outcome["errors"]] == [row for row in range(3) if missing[row] is None]
    assert [float(value) for piece in outcome["pieces"] for value in piece["output"]] == [5 + number for number in missing if number]


def test_a_text_among_numbers_is_named_where_the_model_fails_on_it() -> None:
    outcome = BatchRunner(Net(lambda linear, x: linear(x)), "", stack=True)({"a": [1.0, "n/a", 3.0], "b": np.ones(3)}, 3)

    assert worked(outcome) == [0, 2]
    ((row, _, message),) = outcome["errors"]
    assert row == 1 and message.endswith("; 'a' is 'n/a' in this row")


def test_rows_do_not_depend_on_the_numbers_beside_them() -> None:
    """One fraction makes floating point of a file's whole column; a vocabulary's rows are still whole numbers."""
    outcome = BatchRunner(nn.Embedding(4, 2), "", stack=True)({"x": np.array([0.0, 1.0, 2.5, 3.0])}, 4)

    assert worked(outcome) == [0, 1, 3]
    assert [row for row, _, _ in outcome["errors"]] == [2]


def inverse(*inputs: Any) -> torch.Tensor:
    """Written into memory like its input's, so that integers would be cut off and not raise."""
    found = torch.empty_like(inputs[-1])
    found[:] = 1 / inputs[-1]
    if not found.isfinite().all():
        raise RuntimeError("not finite")
    return found


class Both(Net):
    """Has a vocabulary as well."""

    def __init__(self, does: Callable[..., Any]) -> None:
        super().__init__(does)
        self.names = nn.Embedding(4, 2)


@pytest.mark.parametrize("model", [inverse, Net(inverse), Both(inverse)], ids=["a function", "a module", "one with a vocabulary"])
def test_numbers_do_not_become_integers_because_a_row_fails(model: Any) -> None:
    outcome = run(model, {"x": np.array([4.0, 5.0, 0.0, 8.0], np.float32)})

    assert worked(outcome) == [0, 1, 3] and [row for row, _, _ in outcome["errors"]] == [2]
    assert np.concatenate([piece["output"] for piece in outcome["pieces"]]).tolist() == [0.25, np.float32(0.2), 0.125]


def test_rows_become_indices_one_by_one() -> None:
    seen: list[tuple[int, torch.dtype]] = []

    def named(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
        seen.append((len(x), x.dtype))
        return torch.arange(4)[x]

    outcome = run(Both(named), {"x": np.array([3.0, 0.5, 1.0])})

    assert (worked(outcome), [piece["output"].tolist() for piece in outcome["pieces"]]) == ([0, 2], [[3], [1]])
    assert {count for count, dtype in seen if dtype == torch.int64} == {1}


@pytest.mark.parametrize("error", [ValueError, OSError, KeyError])
@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_errors_of_the_models_own_are_not_taken_for_a_wrong_type(error: type[Exception], dtype: Any) -> None:
    seen: list[torch.dtype] = []

    def picky(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
        seen.append(x.dtype)
        raise error("no")

    outcome = run(Both(picky), {"x": np.array([1, 2]).astype(dtype)})

    assert len(outcome["errors"]) == 2
    assert set(seen) == {torch.from_numpy(np.zeros(1, dtype)).dtype}


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ">f4", np.int64])
@pytest.mark.parametrize("wanted", [torch.float32, torch.float64])
def test_numbers_get_the_models_dtype(dtype: Any, wanted: torch.dtype) -> None:
    outcome = run(Net(lambda linear, x: linear(x), wanted), {"x": X.astype(dtype)})

    assert outcome["errors"] == []
    assert outcome["pieces"][0]["output"].dtype == np.dtype(str(wanted).split(".")[1])


class Scaled(nn.Module):
    """No parameters: what it was exported with says its dtype."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@pytest.mark.parametrize("model", [nn.Linear(2, 1), Scaled()])
def test_a_program_takes_the_numbers_of_any_file(tmp_path: Path, model: nn.Module) -> None:
    program = torch.export.export(model, (torch.zeros(3, 2),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, tmp_path / "net.pt2")
    runner = build_runner(str(tmp_path / "net.pt2"), "", "", True)

    outcome = runner({"x": X.astype(np.float64)}, 4)

    assert outcome["errors"] == []
    np.testing.assert_allclose(outcome["pieces"][0]["output"], model(torch.from_numpy(X)).detach().numpy(), rtol=1e-6)


def test_a_program_with_a_vocabulary_takes_whole_numbers_that_came_as_floating_point(tmp_path: Path) -> None:
    vocabulary = nn.Embedding(4, 2)
    program = torch.export.export(vocabulary, (torch.tensor([0, 1, 2]),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, tmp_path / "net.pt2")
    runner = build_runner(str(tmp_path / "net.pt2"), "", "", True)

    outcome = runner({"x": np.array([3.0, 0.5, 1.0])}, 3)

    assert worked(outcome) == [0, 2]
    wanted = vocabulary(torch.tensor([3, 1])).detach().numpy()
    np.testing.assert_array_equal(np.concatenate([piece["output"] for piece in outcome["pieces"]]), wanted)


def load_wide(path: str) -> torch.Tensor:
    return torch.from_numpy(np.load(path).astype(np.float64))


def test_a_file_of_a_folder_that_is_a_table_is_told() -> None:
    outcome = BatchRunner(nn.Linear(2, 1), "", stack=True)({"__file__": ["data.parquet/part-0.parquet"]}, 1)

    assert "give one file of it" in outcome["errors"][0][2]


def test_what_a_loader_returns_gets_the_models_dtype_too(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X[0])
    runner = BatchRunner(nn.Linear(2, 1), "tests.offline.test_child:load_wide", stack=True)

    assert runner({"__file__": [str(tmp_path / "a.npy")] * 2}, 2)["errors"] == []


LOADED = np.zeros(2, np.float32)


def load_into_one_buffer(path: str) -> Any:
    LOADED[:] = float(Path(path).stem)
    return LOADED


def test_a_loader_that_fills_one_buffer_again_gives_each_file_its_own_row() -> None:
    runner = BatchRunner(lambda x: x[:, 0], "tests.offline.test_child:load_into_one_buffer", stack=True)

    (piece,) = runner({"__file__": ["1.bin", "2.bin", "3.bin"]}, 3)["pieces"]

    assert piece["output"].tolist() == [1.0, 2.0, 3.0]


def scaled_by_dtype(x: torch.Tensor) -> torch.Tensor:
    """What many a transform does: bytes go from 0 to 255, everything else from 0 to 1."""
    return x[:, 0] / 255 if x.dtype == torch.uint8 else x[:, 0]


def test_a_row_keeps_its_dtype_beside_rows_of_another(tmp_path: Path) -> None:
    rows = [np.full(2, 255, np.uint8), np.full(2, 0.5, np.float32), np.full(2, 51, np.uint8)]
    paths = [str(tmp_path / f"{i}.npy") for i in range(len(rows))]
    for path, row in zip(paths, rows):
        np.save(path, row)

    for columns in ({"__file__": paths}, {"x": as_column(list(rows))}):
        outcome = BatchRunner(scaled_by_dtype, "", stack=True)(columns, 3)

        assert outcome["errors"] == []
        assert np.concatenate([piece["output"] for piece in outcome["pieces"]]).tolist() == [1.0, 0.5, np.float32(0.2)]


def test_outputs_in_memory_that_the_model_uses_again_stay_what_they_were() -> None:
    buffer = torch.zeros(4)

    def model(x: torch.Tensor) -> torch.Tensor:
        if len(x) > 1:
            raise ValueError("one at a time")
        buffer[: len(x)] = x[:, 0]
        return buffer[: len(x)]

    outcome = run(model, {"x": X})

    assert [float(piece["output"][0]) for piece in outcome["pieces"]] == [0.0, 2.0, 4.0, 6.0]


@pytest.mark.parametrize(
    "column",
    [
        X.copy(),
        torch.from_numpy(X.copy()),
        [[0.0, 1.0], [2.0], [4.0, 5.0, 1.0], [6.0]],
        [np.array([0.0]), np.array([2.0, 1.0]), np.array([4.0]), np.array([6.0])],
    ],
    ids=["array", "tensor of a worker", "lists", "arrays of any length"],
)
def test_rows_that_run_again_are_what_they_were_before_the_model_wrote_to_them(column: Any) -> None:
    def model(rows: Any) -> torch.Tensor:
        for row in rows:
            row[0] = row[0] * 2 + 1
        if any(row[0] == 9 for row in rows):
            raise ValueError("the third row")
        return torch.tensor([float(row[0]) for row in rows])

    outcome = run(model, {"x": column})

    assert worked(outcome) == [0, 1, 3] and [row for row, _, _ in outcome["errors"]] == [2]
    assert [float(value) for piece in outcome["pieces"] for value in piece["output"]] == [1.0, 5.0, 13.0]


def test_a_masked_output_fails_its_row() -> None:
    outcome = run(lambda x: np.ma.masked_equal(x.numpy()[:, 0], 2.0), {"x": X})

    assert worked(outcome) == [0, 2, 3]
    assert "masked entries" in outcome["errors"][0][2]
