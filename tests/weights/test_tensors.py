"""A number that the model's dtype cannot hold is told, not made infinite."""

from __future__ import annotations

import gc
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint
from safetensors.torch import save_file
from torch import nn

import rankwise
from rankwise.errors import RankwiseError
from rankwise.weights.checkpoint import open_checkpoint
from rankwise.weights.converting import convert_to_safetensors
from rankwise.weights.safetensors_file import header_of
from rankwise.weights.tensor_records import CheckpointError
from rankwise.weights.tensors import TensorReader, check_range
from tests.weights.checkpoints import assert_unchanged, refused, save, values


def linear(value: float, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {"weight": torch.ones(2, 2, dtype=dtype), "bias": torch.tensor([1.0, value], dtype=dtype)}


@pytest.mark.parametrize(
    ("state", "options"),
    [
        (linear(1e300, torch.float64), {}),
        (linear(-1e39, torch.float64), {}),
        (linear(70000.0, torch.float32), {"dtype": "float16"}),
        (linear(3e38, torch.bfloat16), {"dtype": "float16"}),
    ],
)
def test_a_number_that_would_become_infinite(tmp_path: Path, state: dict[str, torch.Tensor], options: dict[str, str]) -> None:
    found = refused(nn.Linear(2, 2), save(tmp_path / "last.pt", state), **options)

    assert found.code == "RW734"
    assert "bias holds" in found.summary and "cannot hold" in found.summary


@pytest.mark.parametrize("value", [torch.inf, torch.nan, 1e-300, 0.1])
def test_what_was_not_finite_before_and_what_is_only_rounded_is_taken(tmp_path: Path, value: float) -> None:
    model = nn.Linear(2, 2)

    rankwise.load_weights(model, save(tmp_path / "last.pt", linear(value, torch.float64)))

    assert torch.equal(model.bias, torch.tensor([1.0, value])) or value != value


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (torch.tensor([1.0, 1e6]), torch.float8_e4m3fn),
        (torch.tensor([1.0, torch.inf]), torch.float8_e4m3fn),
        (torch.tensor([1.0, 57344.0]).to(torch.float8_e5m2), torch.float8_e4m3fn),
        (torch.tensor([1.0, 1e6]), torch.float8_e5m2fnuz),
        (torch.tensor([1.0, -1.0]), torch.float8_e8m0fnu),
    ],
)
def test_a_number_that_a_small_dtype_would_turn_into_another(tmp_path: Path, value: torch.Tensor, wanted: torch.dtype) -> None:
    model = nn.Module()
    model.register_buffer("scale", torch.ones(2).to(wanted))

    assert "cannot hold" in refused(model, save(tmp_path / "last.pt", {"scale": value})).summary


def test_the_imaginary_part_counts_too() -> None:
    with pytest.raises(CheckpointError, match="cannot hold"):
        check_range("waves", torch.tensor([1.0, 1e6j]), torch.complex32)


@pytest.mark.parametrize("wanted", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_what_float8_only_rounds_is_taken(tmp_path: Path, wanted: torch.dtype) -> None:
    model, value = nn.Module(), torch.tensor([0.0, 1.03, -460.0, 1e-9, torch.nan])
    model.register_buffer("scale", torch.ones(5).to(wanted))

    rankwise.load_weights(model, save(tmp_path / "last.pt", {"scale": value}))

    assert model.scale.view(torch.uint8).equal(value.to(wanted).view(torch.uint8))


def test_a_whole_number_that_would_become_another(tmp_path: Path) -> None:
    model = nn.Module()
    model.register_buffer("ids", torch.zeros(2, dtype=torch.int32))

    assert refused(model, save(tmp_path / "last.pt", {"ids": torch.tensor([1, 2**40])})).code == "RW734"


@pytest.mark.parametrize(
    ("value", "dtype", "wanted"),
    [
        (200, torch.uint8, torch.int8),
        (-1, torch.int8, torch.uint8),
        (2**63, torch.uint64, torch.int64),
        (-1, torch.int64, torch.uint64),
        (2**31, torch.uint32, torch.int32),
    ],
)
def test_a_whole_number_that_would_change_its_sign(tmp_path: Path, value: int, dtype: torch.dtype, wanted: torch.dtype) -> None:
    model = nn.Module()
    model.register_buffer("ids", torch.zeros(1, dtype=wanted))

    assert refused(model, save(tmp_path / "last.pt", {"ids": torch.tensor([value], dtype=dtype)})).code == "RW734"


def test_converting_to_a_smaller_dtype(tmp_path: Path) -> None:
    path = save(tmp_path / "last.pt", linear(70000.0, torch.float32))

    with pytest.raises(CheckpointError, match="bias holds"):
        convert_to_safetensors(path, tmp_path / "out.safetensors", dtype="float16")

    assert not (tmp_path / "out.safetensors").exists()


def layouts(path: Path, number: float) -> None:
    """A checkpoint whose bytes lie elsewhere for each number, put in the place of an older one by renaming."""
    state = {name: torch.full(shape, number) for name, shape in (("weight", (2, 2)), ("bias", (2,)))}
    state = state if number == 1 else dict(reversed(state.items()))
    new = path.with_suffix(".new")
    if path.suffix == ".safetensors":
        header = header_of({name: ("float32", tuple(tensor.shape)) for name, tensor in state.items()}, {"n": "x" * int(number)})
        new.write_bytes(header + b"".join(tensor.numpy().tobytes() for tensor in state.values()))
    else:
        whole = {"epoch": "x" * int(number), "model": state}
        torch.save(whole, new, _use_new_zipfile_serialization=path.suffix == ".pt")
    os.replace(new, path)


@pytest.mark.parametrize("name", ["last.pt", "old.bin", "model.safetensors"])
@pytest.mark.parametrize("verify", [True, False])
def test_a_file_that_is_replaced_after_its_header_was_read(
    tmp_path: Path, name: str, verify: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, model, opened = tmp_path / name, nn.Linear(2, 2), []
    layouts(path, 1.0)

    def opened_then_replaced(given: Path) -> Any:
        content = open_checkpoint(given)
        opened.append(given)
        if len(opened) < 3:
            layouts(path, 1.0 + len(opened))
        return content

    monkeypatch.setattr("rankwise.weights.loading.open_checkpoint", opened_then_replaced)
    rankwise.load_weights(model, path, verify=verify)

    assert model.bias.tolist() == [3.0, 3.0]
    assert model.weight.tolist() == [[3.0, 3.0], [3.0, 3.0]]


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_file_that_is_never_the_same_or_gone_is_told(tmp_path: Path, is_removed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    path, model, numbers = tmp_path / "last.pt", nn.Linear(2, 2), itertools.count(2)
    layouts(path, 1.0)
    before = model.weight.clone()

    def opened_then_replaced(given: Path) -> Any:
        content = open_checkpoint(given)
        path.unlink() if is_removed else layouts(path, float(next(numbers)))
        return content

    monkeypatch.setattr("rankwise.weights.loading.open_checkpoint", opened_then_replaced)
    with pytest.raises(RankwiseError) as raised:
        rankwise.load_weights(model, path)

    assert ("cannot be read" if is_removed else "replaced again and again") in raised.value.finding.summary
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("name", ["last.pt", "old.bin", "model.safetensors", "dcp"])
@pytest.mark.parametrize("is_meta", [True, False])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_file_that_is_cut_short_while_it_is_read(
    tmp_path: Path, name: str, is_meta: bool, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapped file would end the process here. What is left is told: the whole model as it was, or how much of it is not."""
    state = {"weight": torch.full((64, 64), 3.0), "bias": torch.full((64,), 3.0)}
    path, model, checks = tmp_path / name, nn.Linear(64, 64, device="meta" if is_meta else None), itertools.count(1)
    if name == "dcp":
        torch.distributed.checkpoint.save(state, checkpoint_id=path, no_dist=True)
    elif name == "model.safetensors":
        save_file(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=name == "last.pt")
    file = next(path.glob("*.distcp")) if name == "dcp" else path
    before, check = None if is_meta else values(model), TensorReader.check

    def checked_then_cut(self: TensorReader, *given: Any) -> None:
        check(self, *given)
        if next(checks) == number:
            os.truncate(file, 100)

    monkeypatch.setattr(TensorReader, "check", checked_then_cut)
    with pytest.raises(RankwiseError) as raised:
        rankwise.load_weights(model, path)

    said = raised.value.finding
    assert said.code == "RW732"
    if before is None:
        assert model.weight.is_meta and model.bias.is_meta
    elif "values already" not in said.why:
        assert_unchanged(model, before)
    else:
        assert number > 2 and "of 2 names" in said.why


def test_no_file_is_left_open(tmp_path: Path) -> None:
    gc.collect()  # what other tests caught may hold files open until then
    before = len(os.listdir("/proc/self/fd"))

    rankwise.load_weights(nn.Linear(2, 2), save(tmp_path / "last.pt", nn.Linear(2, 2).state_dict()))

    assert len(os.listdir("/proc/self/fd")) == before
