"""Reads folders of `torch.distributed.checkpoint` without running what they hold; torch itself would unpickle all of it."""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem

METADATA = ".metadata"
_ROOM = 160  # of one call, in characters
_CHECKPOINT = "torch.distributed.checkpoint"
# Every class that torch writes into `.metadata`; none of them can be made to run anything.
_HARMLESS = {
    *((f"{_CHECKPOINT}.metadata", name) for name in (
        "Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties",
        "StorageMeta", "_MEM_FORMAT_ENCODING")),
    (f"{_CHECKPOINT}.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"), ("torch", "Size"), ("torch", "device"), ("collections", "OrderedDict"),
    ("pathlib", "Path"), ("pathlib", "PosixPath"), ("pathlib", "WindowsPath"), ("pathlib._local", "PosixPath"),
}  # fmt: skip


class Refused(Exception):
    """The folder asks for something to be run; the text is that, as Python would write it. Ranks send this error to each other."""


def read_metadata(folder: Path) -> Metadata:
    """The folder's metadata. Raises Refused for what would run, and ValueError or OSError for what cannot be read."""
    data = (folder / METADATA).read_bytes()
    try:
        metadata: Metadata = _Unpickler(data).load()
        names = {str(info.relative_path) for info in metadata.storage_data.values()}
        metadata.state_dict_metadata.items()
    except Refused:
        raise
    except Exception as error:  # a damaged pickle fails in many ways
        raise ValueError(f"{METADATA} is not what torch.distributed.checkpoint writes ({type(error).__name__}: {error})") from error
    if outside := [name for name in names if Path(name).name != name]:
        raise ValueError(f"{METADATA} names {outside[0][:_ROOM]!r}, which is not a file beside it")
    return metadata


class CheckpointReader(FileSystemReader):
    """A reader that is given the metadata, because torch's own reader would unpickle the file."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(folder)
        self._metadata = metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        self._metadata.storage_meta = self._metadata.storage_meta or StorageMeta()
        self._metadata.storage_meta.load_id = self.load_id
        return self._metadata


class Planner(DefaultLoadPlanner):
    """Loads numbers, strings and the like only; torch's own planner unpickles objects of any kind."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        try:
            plain = torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            raise Refused(f"{asked_for(error)}, for {name}") from error
        buffer = io.BytesIO()
        torch.save(plain, buffer)  # written again, so that torch's planner unpickles exactly what was checked
        buffer.seek(0)
        super().load_bytes(read_item, buffer)


def asked_for(error: pickle.UnpicklingError) -> str:
    """The class that `torch.load(weights_only=True)` refused, taken from its long error message."""
    named = re.search(r"GLOBAL (\S+)|unrecognized function (\S+)", str(error))
    return (named[1] or named[2])[:_ROOM] if named else "more than torch.load(weights_only=True) accepts"


class _Unpickler(pickle.Unpickler):
    """Imports only what is harmless. Any other name becomes a stand-in, which raises Refused with the call as soon as it is called."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._refused = ""

    def load(self) -> Any:
        try:
            loaded = super().load()
        except Refused:
            raise
        except Exception:
            if not self._refused:
                raise
        if self._refused:
            raise Refused(f"import {self._refused}")
        return loaded

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _HARMLESS or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        self._refused = f"{module}.{name}"[:_ROOM]
        return type("StandIn", (_StandIn,), {"asked": self._refused})


class _StandIn:
    asked = ""

    def __new__(cls, *args: Any) -> _StandIn:
        raise Refused(f"{cls.asked}({', '.join(map(repr, args))})"[:_ROOM])
