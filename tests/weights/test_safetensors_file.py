"""Tensors of a safetensors file lie one behind the other; anything else was not written by safetensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn

import rankwise
from rankwise.weights.converting import convert_to_safetensors
from rankwise.weights.tensor_records import CheckpointError
from tests.weights.bad_files import safetensors_with
from tests.weights.checkpoints import refused

SIZES = {"weight": ([2, 2], 16), "bias": ([2], 8)}


@pytest.mark.parametrize(
    ("weight_at", "bias_at", "size", "said"),
    [(0, 0, 16, "overlaps"), (0, 8, 16, "overlaps"), (0, 24, 32, "hole"), (8, 0, 32, "end at byte"), (4, 20, 28, "hole")],
)
def test_overlaps_and_holes(tmp_path: Path, weight_at: int, bias_at: int, size: int, said: str) -> None:
    header = {
        name: {"dtype": "F32", "shape": SIZES[name][0], "data_offsets": [at, at + SIZES[name][1]]}
        for name, at in (("weight", weight_at), ("bias", bias_at))
    }
    safetensors_with(tmp_path / "x.safetensors", header, bytes(size))

    found = refused(nn.Linear(2, 2), tmp_path / "x.safetensors")

    assert found.code == "RW732"
    assert said in found.why


def test_a_dtype_of_which_several_numbers_share_a_byte_costs_its_own_tensor(tmp_path: Path) -> None:
    fours = torch.zeros(4, 8, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    save_file({"net.weight": torch.ones(2, 2), "net.bias": torch.ones(2), "four": fours}, tmp_path / "x.safetensors")
    model = nn.Linear(2, 2)

    assert rankwise.load_weights(model, tmp_path / "x.safetensors", prefix="net.").loaded == 2
    with pytest.raises(CheckpointError, match="it is f4, of which several numbers share a byte"):
        convert_to_safetensors(tmp_path / "x.safetensors", tmp_path / "y.safetensors")


def test_a_shape_that_no_tensor_has(tmp_path: Path) -> None:
    safetensors_with(tmp_path / "x.safetensors", {"x": {"dtype": "F32", "shape": [0, 1 << 62, 1 << 62], "data_offsets": [0, 0]}}, b"")

    with pytest.raises(CheckpointError, match="is not a shape"):
        convert_to_safetensors(tmp_path / "x.safetensors", tmp_path / "y.safetensors")


def _rank_file(folder: Path, number: int, parts: dict[str, tuple[list[int], torch.Tensor]], name: str = "") -> None:
    """As HuggingFaceStorageWriter writes one rank's parts: each begins there."""
    about = {name: {"saved_offsets": begin} for name, (begin, _) in parts.items()}
    path = folder / (name or f"shard-{number:05}-model-00001-of-00001.safetensors")
    save_file({name: part.contiguous() for name, (_, part) in parts.items()}, path, metadata={"DCP_SHARDING_INFO": json.dumps(about)})


def _of_two_ranks(folder: Path, saved: nn.Linear) -> None:
    _rank_file(folder, 1, {"weight": ([0, 0], saved.weight.data[:2])})
    _rank_file(folder, 2, {"weight": ([2, 0], saved.weight.data[2:]), "bias": ([0], saved.bias.data)})


def test_whole_tensors_of_the_huggingface_writer(tmp_path: Path) -> None:
    saved, model = nn.Linear(2, 3), nn.Linear(2, 3)
    dcp.save(saved.state_dict(), storage_writer=dcp.HuggingFaceStorageWriter(str(tmp_path)), no_dist=True)

    rankwise.load_weights(model, tmp_path)

    assert torch.equal(model.weight, saved.weight) and torch.equal(model.bias, saved.bias)


def test_the_parts_of_all_ranks_are_joined(tmp_path: Path) -> None:
    saved, model = nn.Linear(2, 3), nn.Linear(2, 3)
    _of_two_ranks(tmp_path, saved)

    rankwise.load_weights(model, tmp_path)

    assert torch.equal(model.weight, saved.weight) and torch.equal(model.bias, saved.bias)
    assert refused(model, tmp_path / "shard-00002-model-00001-of-00001.safetensors").code in ("RW734", "RW740")


@pytest.mark.parametrize(
    ("gone", "more", "code"),
    [
        (1, {}, "RW736"),  # the number says so
        (2, {}, "RW734"),  # nothing says so, but the model does
        (None, {"weight": ([2, 0], torch.ones(1, 2))}, "RW732"),
        (None, {"weight": ([1, 0], torch.ones(1, 2))}, "RW732"),
        (None, {"weight": ([4, 0], torch.ones(1, 2))}, "RW732"),
        (None, {"bias": ([0], torch.ones(3, dtype=torch.float16))}, "RW732"),
    ],
)
def test_parts_that_are_not_those_of_one_save(
    tmp_path: Path, gone: int | None, more: dict[str, tuple[list[int], torch.Tensor]], code: str
) -> None:
    _of_two_ranks(tmp_path, nn.Linear(2, 3))
    if gone:
        (tmp_path / f"shard-{gone:05}-model-00001-of-00001.safetensors").unlink()
    if more:
        _rank_file(tmp_path, 3, more)

    assert refused(nn.Linear(2, 3), tmp_path).code == code


def test_a_part_under_another_files_name_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    saved = nn.Linear(2, 3)
    _rank_file(tmp_path, 1, {"weight": ([2, 0], saved.weight.data), "bias": ([0], saved.bias.data)}, "model.safetensors")

    assert refused(nn.Linear(2, 3), tmp_path).code == "RW740"
