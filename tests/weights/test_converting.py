"""Converting without a model: what is written is all of it, or what was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from rankwise.errors import UsageError
from rankwise.weights.converting import convert_to_safetensors
from rankwise.weights.tensor_records import CheckpointError
from tests.weights.checkpoints import save


def test_a_second_model_is_not_left_out_silently(tmp_path: Path) -> None:
    path = save(tmp_path / "last.pt", {"model": nn.Linear(2, 2).state_dict(), "critic": nn.Linear(3, 3).state_dict()})

    with pytest.raises(CheckpointError) as caught:
        convert_to_safetensors(path, tmp_path / "out.safetensors")
    done = convert_to_safetensors(path, tmp_path / "out.safetensors", key="critic")

    assert caught.value.finding.code == "RW735"
    assert "--key model, --key critic" in caught.value.finding.next[0]
    assert done.tensors == 2


def test_two_tensors_of_one_name_are_not_chosen_between(tmp_path: Path) -> None:
    path = save(tmp_path / "last.pt", {"a": {"w": torch.zeros(2)}, "a.w": torch.ones(2)})

    with pytest.raises(CheckpointError) as caught:
        convert_to_safetensors(path, tmp_path / "out.safetensors")

    assert caught.value.finding.code == "RW734"


def test_two_names_that_are_one_without_wrappers_are_not_chosen_between(tmp_path: Path) -> None:
    path = save(tmp_path / "last.pt", {"a._orig_mod.w": torch.zeros(2), "a.w": torch.ones(2)})

    with pytest.raises(CheckpointError) as caught:
        convert_to_safetensors(path, tmp_path / "out.safetensors")

    assert caught.value.finding.code == "RW734"
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("name", ["plain.safetensors", "link.safetensors"])
def test_a_checkpoint_is_not_replaced_by_what_is_made_of_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / "plain.safetensors"
    save_file({"module.w": torch.ones(2), "module.b": torch.zeros(3)}, path)
    (tmp_path / "link.safetensors").symlink_to(path)
    before = path.read_bytes()

    with pytest.raises(UsageError, match="is the checkpoint"):
        convert_to_safetensors(path, tmp_path / name)

    assert path.read_bytes() == before


@pytest.mark.parametrize("scale", ["w_scale_inv", "w.weight_scale"])
def test_float8_is_not_widened_beside_its_scale(tmp_path: Path, scale: str) -> None:
    tensor = torch.ones(2, 2).to(torch.float8_e4m3fn)
    scaled, plain = tmp_path / "scaled.safetensors", tmp_path / "plain.safetensors"
    save_file({"w": tensor, scale: torch.ones(1)}, scaled)
    save_file({"w": tensor}, plain)

    with pytest.raises(CheckpointError, match="w is float8_e4m3fn") as caught:
        convert_to_safetensors(scaled, tmp_path / "out.safetensors", dtype="bfloat16")

    assert "without their scales" in caught.value.finding.next[0]
    assert convert_to_safetensors(scaled, tmp_path / "same.safetensors").tensors == 2
    assert convert_to_safetensors(plain, tmp_path / "wide.safetensors", dtype="bfloat16").nbytes == 8
