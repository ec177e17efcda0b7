"""What the command line says, as a model and as inputs: `my_models:build` and `float32[8,784]`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rankwise.errors import UsageError
from rankwise.weights.building import build_model, evaluating, example_inputs, import_callable

MODELS = """
import torch
SIZE = 3
class Factory:
    @staticmethod
    def build(): return torch.nn.Linear(2, 2)
def build(): return torch.nn.Dropout()
def text(): return "no model"
def broken(): return 1 / 0
def one(): return torch.ones(2)
def two(): return [torch.ones(2), torch.zeros(2)]
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with modules of a user, which is where the command runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "users_models.py").write_text(MODELS)
    (tmp_path / "users_broken.py").write_text("import not_there_at_all")
    yield tmp_path
    sys.modules.pop("users_models", None)


def test_a_callable_is_found_in_this_folder() -> None:
    assert import_callable("users_models:build").__name__ == "build"
    assert isinstance(import_callable("users_models:Factory.build")(), torch.nn.Linear)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("users_models", "is not an import path"),
        ("users_models:", "is not an import path"),
        (":build", "is not an import path"),
        ("users_model:build", "there is no module 'users_model'"),
        ("users_models:Factory.make", "'users_models' has no 'Factory.make'"),
        ("users_models:SIZE", "is a int, not a callable"),
    ],
)
def test_a_path_that_leads_nowhere_is_wrong_usage(path: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        import_callable(path)


def test_a_name_that_is_not_there_is_told_those_that_are() -> None:
    with pytest.raises(UsageError) as caught:
        import_callable("users_models:bild")

    assert "build" in caught.value.finding.next[0] and "SIZE" not in caught.value.finding.next[0]


def test_what_the_users_own_module_does_not_find_is_not_called_a_wrong_path() -> None:
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        import_callable("users_broken:build")


def test_a_model_is_built_for_inference() -> None:
    assert not build_model("users_models:build").training


@pytest.mark.parametrize(("path", "said"), [("users_models:text", "returned a str"), ("users_models:broken", "broken failed")])
def test_what_builds_no_model_is_wrong_usage(path: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        build_model(path)


def test_a_failure_of_the_users_code_is_told_with_its_place() -> None:
    with pytest.raises(UsageError) as caught:
        build_model("users_models:broken")

    assert "users_models.py:9 broken(): ZeroDivisionError" in caught.value.finding.why


def test_a_module_that_refuses_eval_is_set_to_inference_all_the_same() -> None:
    class Refuses(torch.nn.Module):
        def eval(self) -> torch.nn.Module:
            raise NotImplementedError

        def train(self, mode: bool = True) -> torch.nn.Module:
            raise NotImplementedError

    whole = torch.nn.Sequential(Refuses(), torch.nn.Dropout())

    assert not any(module.training for module in evaluating(whole).modules())


@pytest.mark.parametrize(
    ("spec", "dtype", "shape"),
    [
        ("float32[8,784]", torch.float32, (8, 784)),
        (" bfloat16[ 2, 3 ] ", torch.bfloat16, (2, 3)),
        ("int64[4]", torch.int64, (4,)),
        ("bool[2]", torch.bool, (2,)),
        ("complex64[2]", torch.complex64, (2,)),
        ("float32[]", torch.float32, ()),
    ],
)
def test_an_example_is_of_the_dtype_and_shape_that_were_written(spec: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    (made,) = example_inputs([spec])

    assert (made.dtype, tuple(made.shape)) == (dtype, shape)


def test_examples_are_random_and_the_same_each_time() -> None:
    one, other = example_inputs(["float32[4]", "float32[4]"])

    assert not torch.equal(one, other)
    assert torch.equal(one, example_inputs(["float32[4]"])[0])


@pytest.mark.parametrize(("dtype", "is_fractional"), [("float32", True), ("complex64", True), ("int64", False)])
def test_only_whole_numbers_are_zeros_and_ones(dtype: str, is_fractional: bool) -> None:
    (made,) = example_inputs([f"{dtype}[20]"])

    assert (not all(number in (0, 1) for number in made.tolist())) is is_fractional


def test_examples_may_come_from_a_callable() -> None:
    assert [len(example_inputs([f"users_models:{name}"])) for name in ("one", "two")] == [1, 2]


@pytest.mark.parametrize("spec", ["float32", "float[2]", "float32[2", "float32[a]", "float32[-1]", "Tensor[2]", "float32[2]x"])
def test_what_is_no_example_is_wrong_usage(spec: str) -> None:
    with pytest.raises(UsageError, match="is not an example input"):
        example_inputs([spec])


def test_an_example_that_would_not_fit_into_memory() -> None:
    with pytest.raises(UsageError, match="would not fit into memory"):
        example_inputs([f"int64[{(4 << 30) // 8 + 1}]"])
