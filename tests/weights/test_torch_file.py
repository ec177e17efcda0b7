"""torch's format before 1.6 has no checksums: what shows in its structure is found, what cannot be seen is told."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import nn

import rankwise
from rankwise.weights.checkpoint import open_checkpoint
from rankwise.weights.tensor_records import CheckpointError
from tests.weights.checkpoints import refused
from tests.weights.test_corpus import assert_same

DAMAGED = 300


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4))


@pytest.fixture
def legacy(tmp_path: Path) -> tuple[Path, nn.Module]:
    model = net()
    torch.save({"model": model.state_dict()}, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    return tmp_path / "legacy.pt", model


def damage(whole: bytes, draw: random.Random, is_payload: set[int]) -> bytes:
    """One of the ways files come to harm; single bytes only outside of the numbers, where nobody could tell."""
    content = bytearray(whole)
    at = draw.choice([place for place in range(len(whole)) if place not in is_payload])
    anywhere = draw.randrange(len(whole))
    way = draw.choice(["flip", "byte", "cut", "insert", "delete", "appended", "again"])
    if way == "flip":
        content[at] ^= 1 << draw.randrange(8)
    elif way == "byte":
        content[at] = draw.randrange(256)
    elif way == "cut":
        del content[anywhere:]
    elif way == "insert":
        content[anywhere:anywhere] = draw.randbytes(draw.choice([1, 4, 8]))
    elif way == "delete":
        del content[anywhere : anywhere + draw.choice([1, 4, 8])]
    elif way == "appended":
        content += draw.randbytes(draw.choice([1, 8, 100]))
    else:
        content += content[anywhere:]
    return bytes(content)


def test_damage_is_found_or_does_no_harm(legacy: tuple[Path, nn.Module]) -> None:
    path, saved = legacy
    whole = path.read_bytes()
    places = [record.storage for record in open_checkpoint(path).tree["model"].values()]
    payload = {place for extent in places for place in range(extent.offset, extent.offset + extent.nbytes)}
    draw = random.Random(5)
    longer_or_shorter = 0
    for _ in range(DAMAGED):
        path.write_bytes(damaged := damage(whole, draw, payload))
        model = net()
        try:
            rankwise.load_weights(model, path)
        except rankwise.RankwiseError:
            longer_or_shorter += len(damaged) != len(whole)
        else:
            assert_same(model, saved.state_dict())
            assert len(damaged) <= len(whole) or damaged == whole
    assert longer_or_shorter > DAMAGED / 3


def test_a_name_with_a_backslash_is_damage_where_warnings_are_errors(tmp_path: Path) -> None:
    from tests.weights.bad_files import zip_with

    zip_with(tmp_path / "x.pt", b"\x80\x02ctorch._utils\n_rebuild\\C\n.")

    with pytest.raises(CheckpointError, match="not a valid pickle"):
        rankwise.load_weights(net(), tmp_path / "x.pt")


def test_a_stride_that_became_zero(legacy: tuple[Path, nn.Module]) -> None:
    """No bounds are left, and each row of the weight would be the first one."""
    path, _ = legacy
    path.write_bytes(path.read_bytes().replace(b"K\x04K\x01\x86", b"K\x00K\x01\x86", 1))

    assert refused(net(), path).code == "RW732"


def test_a_tensor_that_was_expanded_on_purpose_loads(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(1, 3).expand(3, 3), "bias": torch.zeros(3)}, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    model = nn.Linear(3, 3)

    rankwise.load_weights(model, tmp_path / "x.pt")

    assert torch.equal(model.weight, torch.ones(3, 3))


def test_the_report_says_how_much_had_no_checksum(legacy: tuple[Path, nn.Module], tmp_path: Path) -> None:
    path, saved = legacy
    torch.save(saved.state_dict(), tmp_path / "zip.pt")

    old, new = rankwise.load_weights(net(), path), rankwise.load_weights(net(), tmp_path / "zip.pt")
    unverified = rankwise.load_weights(net(), tmp_path / "zip.pt", verify=False)

    assert old.unchecked_bytes == old.nbytes > 0
    assert new.unchecked_bytes == 0
    assert unverified.unchecked_bytes == unverified.nbytes


@pytest.mark.parametrize("function", ["_rebuild_tensor_v2", "_rebuild_tensor", "_rebuild_parameter", "_rebuild_tensor_v3"])
def test_a_tensor_without_arguments_is_a_finding(tmp_path: Path, function: str) -> None:
    from tests.weights.bad_files import zip_with

    zip_with(tmp_path / "x.pt", b"\x80\x02}U\x01wctorch._utils\n" + function.encode() + b"\n)Rs.")

    with pytest.raises(CheckpointError) as caught:
        rankwise.load_weights(nn.Linear(2, 2), tmp_path / "x.pt")

    assert caught.value.finding.code == "RW732"


def test_a_program_of_torch_script_is_not_called_damaged(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(nn.Linear(4, 4)), tmp_path / "script.pt")

    found = refused(net(), tmp_path / "script.pt")

    assert found.code == "RW740" and "TorchScript" in found.summary
    assert "torch.jit.load" in found.next[0]


def test_a_size_that_is_none_is_a_value_like_others(tmp_path: Path) -> None:
    torch.save({"model": nn.Linear(2, 2).state_dict(), "view": torch.Size([-1, 3])}, tmp_path / "x.pt")

    rankwise.load_weights(nn.Linear(2, 2), tmp_path / "x.pt")


def test_a_key_that_is_a_number_too_long_to_be_written(tmp_path: Path) -> None:
    torch.save({10**5000: {"a": torch.ones(2)}, 3: torch.ones(2)}, tmp_path / "x.pt")

    assert refused(nn.Linear(2, 2), tmp_path / "x.pt").code == "RW734"
