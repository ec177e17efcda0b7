"""safetensors files: whole or not there, aligned, and with a checksum of each tensor."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rankwise.weights.safetensors_file import CRC_KEY
from rankwise.weights.tensor_records import CheckpointError
from rankwise.weights.writing import write_safetensors

TENSORS = {"a": torch.arange(3, dtype=torch.uint8), "b": torch.tensor([0.5, -1.0], dtype=torch.bfloat16), "c": torch.ones(2, 2).t()}
PLAN = {"a": ("uint8", (3,)), "b": ("float32", (2,)), "c": ("float32", (2, 2))}


def write(path: Path, **changes: object) -> None:
    facts = {"plan": PLAN, "read": TENSORS.__getitem__, "notes": {"by": "test"}, "check": lambda path: None, **changes}
    write_safetensors(path, **facts)  # type: ignore[arg-type]


def header(path: Path) -> tuple[dict[str, dict[str, list[int]]], dict[str, str]]:
    data = path.read_bytes()
    entries = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return entries, entries.pop("__metadata__")


def test_others_read_what_was_written_with_the_dtype_that_was_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "net.safetensors")

    found = load_file(tmp_path / "net.safetensors")

    assert {name: (tensor.dtype, tensor.tolist()) for name, tensor in found.items()} == {
        "a": (torch.uint8, [0, 1, 2]),
        "b": (torch.float32, [0.5, -1.0]),
        "c": (torch.float32, [[1.0, 1.0], [1.0, 1.0]]),
    }


def test_each_tensor_is_aligned_and_its_checksum_is_of_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    write(path)
    entries, metadata = header(path)
    data = path.read_bytes()
    first = 8 + int.from_bytes(data[:8], "little")

    assert metadata["format"] == "pt" and metadata["by"] == "test"
    crcs = json.loads(metadata[CRC_KEY])
    for name, entry in entries.items():
        begin, end = entry["data_offsets"]
        assert begin % (1 if name == "a" else 4) == 0
        assert crcs[name] == f"{zlib.crc32(data[first + begin : first + end]):08x}"


def test_a_dtype_that_the_format_has_not_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="w is complex32, which safetensors cannot hold") as refused:
        write(tmp_path / "net.safetensors", plan={"w": ("complex32", (1,))})

    assert refused.value.finding.code == "RW740" and not list(tmp_path.iterdir())


def test_what_goes_wrong_on_the_way_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    path.write_bytes(b"before")

    def refuse(written: Path) -> None:
        assert written != path and load_file(written).keys() == PLAN.keys(), "it is whole when it is looked at"
        raise ValueError("not what was wanted")

    with pytest.raises(ValueError, match="not what was wanted"):
        write(path, check=refuse)
    with pytest.raises(KeyError):
        write(path, read={"a": TENSORS["a"]}.__getitem__)

    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_a_finding(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="could not be written") as failed:
        write(tmp_path / "gone" / "net.safetensors")

    assert failed.value.finding.code == "RW741"
