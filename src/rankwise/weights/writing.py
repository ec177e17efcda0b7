"""Writes safetensors, one tensor at a time, under a name that appears only when the file is complete."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from rankwise.files import what_stops, whole_file
from rankwise.weights.records import ITEM_SIZES, CheckpointError
from rankwise.weights.safetensors_file import CRC_KEY, DTYPES

_WRITTEN = {dtype: name for name, dtype in DTYPES.items()}
_CRC_LATER = "00000000"


def write_safetensors(
    path: Path, plan: Mapping[str, tuple[str, tuple[int, ...]]], read: Callable[[str], torch.Tensor], notes: Mapping[str, str]
) -> None:
    """Write the tensors of `plan` (name: dtype and shape); `read` gives each when its turn comes.

    Each tensor's CRC-32 goes into the header's metadata, so that `load_weights` sees a flipped bit, which the format alone cannot show.
    """
    order = sorted(plan, key=lambda name: (-ITEM_SIZES[plan[name][0]], name))  # the widest first keeps all of them aligned
    crcs = dict.fromkeys(order, _CRC_LATER)
    with new_file(path) as file:
        file.write(_header(plan, order, crcs, notes))
        for name in order:
            data = _bytes_of(read(name).to(getattr(torch, plan[name][0])))
            crcs[name] = f"{zlib.crc32(data):08x}"
            file.write(data)
        file.seek(0)
        file.write(_header(plan, order, crcs, notes))  # of the same length: a CRC always has eight digits


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Any]:
    """A file that takes its name when all of it is on the disk; whatever goes wrong before, nothing is left behind."""
    try:
        with whole_file(path, is_synced=True) as file:
            yield file
    except OSError as error:
        raise not_written(path, error) from error


def not_written(path: Path, error: OSError) -> CheckpointError:
    what, way_out = what_stops(error)
    return CheckpointError("RW741", f"{path} could not be written", why=what, next=(way_out,))


def _header(plan: Mapping[str, tuple[str, tuple[int, ...]]], order: list[str], crcs: Mapping[str, str], notes: Mapping[str, str]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", **notes, CRC_KEY: json.dumps(crcs)}}
    at = 0
    for name in order:
        dtype, shape = plan[name]
        nbytes = torch.Size(shape).numel() * ITEM_SIZES[dtype]
        if dtype not in _WRITTEN:
            raise CheckpointError("RW740", f"{name} is {dtype}, which safetensors cannot hold", next=("--dtype float32",))
        entries[name] = {"dtype": _WRITTEN[dtype], "shape": list(shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")  # type: ignore[arg-type]
