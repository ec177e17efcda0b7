"""Files of torch.save: the zip format, and the one before it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from rankwise.weights.danger import DTENSOR, HARMLESS, what_would_run
from rankwise.weights.opcodes import Global, Persistent, PickleBytes, Pickled, read_pickle
from rankwise.weights.rebuilding import STORAGE_DTYPES, plain_tree
from rankwise.weights.tensor_records import ITEM_SIZES, Content, Damaged, Extent, TensorRecord
from rankwise.weights.zipped import Archive, open_archive

# a pickle of the number 0x1950a86a20f9469cfc6c, without its first two bytes, which name the protocol
LEGACY_MAGIC = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."


def read_torch_zip(path: Path, archive: Archive, harmless: Collection[str] = HARMLESS | DTENSOR) -> Content:
    """The content of a file of torch.save; its tensors stay in the file."""
    value, would_run = _read_pickled(path, archive, harmless)
    return Content("torch zip", as_tree(value), (path,), would_run=would_run)


def _read_pickled(path: Path, archive: Archive, harmless: Collection[str] = HARMLESS | DTENSOR) -> tuple[Any, tuple[str, ...]]:
    pickled = read_pickle(PickleBytes(archive.read("data.pkl")))
    if "byteorder" in archive.entries and archive.read("byteorder") != b"little":
        raise Damaged("its numbers are big-endian; only little-endian ones can be read")

    def find_storage(key: str, dtype: str, nbytes: int) -> Extent:
        extent = archive.entries.get(f"data/{key}")
        if extent is None:
            raise Damaged(f"the storage data/{key[:40]} is missing")
        if nbytes > extent.nbytes:
            raise Damaged(f"the storage data/{key[:40]} should have {nbytes:,} bytes, {extent.nbytes:,} are there")
        return extent

    return plain_tree(pickled.value, find_storage), what_would_run(pickled, harmless)


def read_embedded(extent: Extent, data: Any) -> Any:
    """The value that torch.save wrote into an archive inside a file of DCP: a tensor, a dictionary or any other."""
    archive = open_archive(extent.path, data, extent.offset, extent.nbytes)
    if "data.pkl" not in archive.entries:
        raise Damaged(f"there is no value at byte {extent.offset:,} of {extent.path.name}")
    return _read_pickled(extent.path, archive)[0]


def read_legacy(path: Path, data: Any) -> Content:
    """The content of a file of torch.save before 1.6: five pickles, then the storages one after the other."""
    stream = PickleBytes(data)
    for _ in range(2):  # the magic number, the protocol
        read_pickle(stream)
    system = read_pickle(stream).value
    if isinstance(system, dict) and system.get("little_endian") is False:
        raise Damaged("its numbers are big-endian; only little-endian ones can be read")
    pickled = read_pickle(stream)
    keys = read_pickle(stream).value
    storages = _legacy_storages(path, data, stream.tell(), keys, _legacy_dtypes(pickled))

    def find_storage(key: str, dtype: str, nbytes: int) -> Extent:
        extent = storages.get(key)
        if extent is None:
            raise Damaged(f"the storage {key[:40]} of {nbytes:,} bytes is missing")
        if nbytes != extent.nbytes:
            raise Damaged(f"the storage {key[:40]} should have {nbytes:,} bytes, and the file has {extent.nbytes:,}")
        return extent

    tree = as_tree(plain_tree(pickled.value, find_storage))
    _check_strides(tree)
    return Content("torch legacy", tree, (path,), would_run=what_would_run(pickled))


def as_tree(value: Any) -> dict[Any, Any]:
    """A dictionary as it is, a list as a dictionary by its indices, anything else under the empty name."""
    if isinstance(value, dict):
        return value
    if isinstance(value, (list, tuple)):
        return {str(index): item for index, item in enumerate(value)}
    return {"": value}


def _check_strides(value: Any) -> None:
    """Raise Damaged if a tensor repeats a part of its storage and leaves out the rest: no checksum shows that a stride became 0."""
    if isinstance(value, TensorRecord):
        moving = [size for size, stride in zip(value.shape, value.strides) if stride]
        is_repeated = any(size > 1 and stride == 0 for size, stride in zip(value.shape, value.strides))
        if is_repeated and value.storage and math.prod(moving) * ITEM_SIZES[value.dtype] < value.storage.nbytes:
            raise Damaged(
                f"a tensor of shape {list(value.shape)} has the strides {list(value.strides)}, which leave out most of its storage"
            )
    elif isinstance(value, (dict, list, tuple)):
        for inside in value.values() if isinstance(value, dict) else value:
            _check_strides(inside)


def _legacy_dtypes(pickled: Pickled) -> dict[str, str]:
    """The dtype of each storage, which only the tensors' references to it name."""
    dtypes: dict[str, str] = {}
    for call in pickled.calls:
        for reference in _references(call.args):
            if isinstance(reference.id, tuple) and len(reference.id) >= 5:
                kind, key = reference.id[1:3]
                if isinstance(kind, Global) and isinstance(key, str):
                    dtypes[key] = STORAGE_DTYPES.get(kind.name, "")
    return dtypes


def _references(args: tuple[Any, ...], depth: int = 3) -> Iterator[Persistent]:
    for value in args:
        if isinstance(value, Persistent):
            yield value
        elif isinstance(value, tuple) and depth:
            yield from _references(value, depth - 1)


def _legacy_storages(path: Path, data: Any, at: int, keys: Any, dtypes: dict[str, str]) -> dict[str, Extent]:
    if not isinstance(keys, list):
        raise Damaged("the list of its storages is missing")
    storages = {}
    for key in keys:
        dtype = dtypes.get(key) if isinstance(key, str) else None
        if not dtype:
            raise Damaged(f"nobody refers to its storage {str(key)[:40]}")
        nbytes = int.from_bytes(data[at : at + 8], "little") * ITEM_SIZES[dtype]
        if at + 8 + nbytes > len(data):
            raise Damaged(f"a storage should have {nbytes:,} bytes, {max(len(data) - at - 8, 0):,} are left")
        if key in storages:
            raise Damaged(f"its storage {key[:40]} is listed twice")
        storages[key] = Extent(path, at + 8, nbytes, stamp=data.stamp)
        at += 8 + nbytes
    if at != len(data):
        raise Damaged(f"its storages end at byte {at:,}, the file at {len(data):,}")
    if left := dtypes.keys() - storages.keys():
        raise Damaged(f"the storage {min(left)[:40]} is not in its list")
    return storages
