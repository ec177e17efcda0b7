"""Folders of torch.distributed.checkpoint, read without a process group: `.metadata` says which file holds which part of what."""

from __future__ import annotations

import math
from functools import reduce
from pathlib import Path
from typing import Any

from rankwise.weights.danger import HARMLESS, what_would_run
from rankwise.weights.opcodes import FunctionCall, Global, PickleBytes, read_pickle
from rankwise.weights.plain_files import beside, open_bytes, read_small, stamp_of, warn_if_cut_off
from rankwise.weights.rebuilding import sizes_of
from rankwise.weights.tensor_records import (
    ITEM_SIZES,
    Content,
    Damaged,
    Extent,
    TensorPiece,
    TensorRecord,
    Unbuilt,
    as_damage,
    check_cover,
    is_extra_state,
)
from rankwise.weights.torch_file import read_embedded
from rankwise.weights.zipped import MAX_SMALL_ENTRY

METADATA = ".metadata"
FORMAT = "torch.distributed.checkpoint"  # also the module of all its classes
# torch reads this file with a plain pickle.load, which would run whatever the file says
_HARMLESS = HARMLESS | {
    *(f"{FORMAT}.metadata.{name}" for name in (
        "Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties",
        "StorageMeta", "_MEM_FORMAT_ENCODING")),
    f"{FORMAT}.filesystem._StorageInfo", f"{FORMAT}._fsspec_filesystem._StorageInfo",
    "pathlib.PosixPath", "pathlib.WindowsPath", "pathlib.Path", "pathlib._local.PosixPath",
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",
    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
}  # fmt: skip


def read_dcp(folder: Path) -> Content:
    """Every tensor of the folder, whole, whatever number of ranks wrote it."""
    pickled = read_pickle(PickleBytes(read_small(folder / METADATA, MAX_SMALL_ENTRY)))
    would_run = what_would_run(pickled, _HARMLESS)
    if would_run:
        return Content(FORMAT, {}, (folder / METADATA,), would_run=would_run)
    with as_damage(f"{METADATA} is not what torch.distributed.checkpoint writes"):
        metadata = pickled.value.state
        stored = _stored(folder, metadata["storage_data"])
        paths = metadata.get("planner_data") or {}
        tree: dict[Any, Any] = {}
        for name, entry in metadata["state_dict_metadata"].items():
            is_tensor = isinstance(entry, FunctionCall) and str(entry.target) == f"{FORMAT}.metadata.TensorStorageMetadata"
            value = _record(name, entry.state, stored) if is_tensor else _bytes(name, stored)
            *way, last = paths.get(name) or (name,)  # the planner flattened the names, and noted each one's path
            reduce(lambda inner, step: inner.setdefault(step, {}), way, tree)[last] = value

    files = dict.fromkeys(extent.path for extent in stored.values())
    _check_one_save(folder, list(stored.values()))
    return Content(FORMAT, tree, (folder / METADATA, *files))


def _stored(folder: Path, storage_data: dict[Any, Any]) -> dict[tuple[str, tuple[int, ...] | None], Extent]:
    """The bytes of each part, by its name and offsets."""
    found = {}
    paths: dict[str, Path] = {}
    for index, info in storage_data.items():
        name = info.state["relative_path"]
        path = paths.get(name) or paths.setdefault(name, beside(folder, name, METADATA))
        if info.state.get("transform_descriptors"):
            raise Damaged(f"{name} was written through {info.state['transform_descriptors']}; only plain parts can be read")
        offset, length = info.state["offset"], info.state["length"]
        facts = path.stat()
        if offset < 0 or length < 0 or offset + length > facts.st_size:
            raise Damaged(f"bytes {offset:,} to {offset + length:,} of {name} are declared, it has {facts.st_size:,}")
        where = index.state.get("offset")
        found[index.state["fqn"], None if where is None else sizes_of(where)] = Extent(path, offset, length, stamp=stamp_of(facts))
    return found


def _check_one_save(folder: Path, extents: list[Extent]) -> None:
    """Find files of two saves."""
    ends: dict[Path, int] = {}
    for extent in extents:
        ends[extent.path] = max(ends.get(extent.path, 0), extent.offset + extent.nbytes)
    if longer := [path.name for path, end in ends.items() if path.stat().st_size > end]:
        raise Damaged(f"{longer[0]} is longer than {METADATA} says: it is of another save")
    warn_if_cut_off(folder / METADATA, ends)


def _record(name: str, entry: dict[str, Any], stored: dict[tuple[str, tuple[int, ...] | None], Extent]) -> TensorRecord:
    dtype, shape = _dtype(entry["properties"]), sizes_of(entry["size"])
    boxes = [(sizes_of(chunk.state["offsets"]), sizes_of(chunk.state["sizes"])) for chunk in entry["chunks"]]
    chunks = []
    for offsets, sizes in boxes:
        extent = stored.get((name, offsets)) or stored.get((name, None))
        if extent is None:
            raise Damaged(f"the part of {name[:100]} at {list(offsets)} is in no file")
        if math.prod(sizes) * ITEM_SIZES[dtype] > extent.nbytes:
            raise Damaged(f"the part of {name[:100]} at {list(offsets)} is declared larger than the bytes it lies in")
        chunks.append(TensorPiece(offsets, sizes, extent))
    check_cover(name, shape, boxes)
    return TensorRecord(dtype, shape, chunks=tuple(chunks))


def _bytes(name: str, stored: dict[tuple[str, tuple[int, ...] | None], Extent]) -> Any:
    """A module's extra state; other bytes are not weights."""
    extent = stored.get((name, None))
    if extent is None or not is_extra_state(name):
        return Unbuilt("kept as bytes")
    return read_embedded(extent, open_bytes(extent.path))


def _dtype(properties: FunctionCall) -> str:
    named = properties.state[0] if isinstance(properties.state, tuple) else properties.state["dtype"]
    if not isinstance(named, Global) or named.name not in ITEM_SIZES:
        raise Damaged(f"the dtype {named} is not known")
    return named.name
