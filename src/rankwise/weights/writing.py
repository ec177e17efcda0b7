"""Writes safetensors, one tensor at a time, under a name that appears only when the file is complete."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from rankwise.files import what_stops, whole_file
from rankwise.weights.safetensors_file import CRC_KEY, NAMES, header_of
from rankwise.weights.sharing import bytes_of
from rankwise.weights.tensor_records import ITEM_SIZES, CheckpointError


def write_safetensors(
    path: Path,
    plan: Mapping[str, tuple[str, tuple[int, ...]]],
    read: Callable[[str], torch.Tensor],
    notes: Mapping[str, str],
    check: Callable[[Path], None],
) -> None:
    """Write the tensors of `plan` (name: dtype and shape); `read` gives each when its turn comes. If `check` raises, no file is left.

    Each tensor's CRC-32 goes into the header's metadata, so that `load_weights` sees a flipped bit, which the format alone cannot show.
    """
    for name, (dtype, _) in plan.items():
        if dtype not in NAMES:
            raise CheckpointError("RW740", f"{name} is {dtype}, which safetensors cannot hold", next=("--dtype float32",))
    order = sorted(plan, key=lambda name: (-ITEM_SIZES[plan[name][0]], name))  # the widest first keeps all of them aligned
    crcs = dict.fromkeys(order, 0)

    def header() -> bytes:
        """The header, whose length does not depend on the checksums."""
        checksums = json.dumps({name: f"{crc:08x}" for name, crc in crcs.items()})
        return header_of({name: plan[name] for name in order}, {"format": "pt", **notes, CRC_KEY: checksums})

    try:
        with whole_file(path, is_synced=True, check=check) as file:
            file.write(header())
            for name in order:
                data = bytes_of(read(name).to(getattr(torch, plan[name][0]))).numpy().data
                crcs[name] = zlib.crc32(data)
                file.write(data)
            file.seek(0)
            file.write(header())
    except OSError as error:
        raise not_written(path, error) from error


def not_written(path: Path, error: OSError) -> CheckpointError:
    what, way_out = what_stops(error)
    return CheckpointError("RW741", f"{path} could not be written", why=what, next=(way_out,))
