"""safetensors: a JSON header that says where each tensor lies. One file, or several with an index."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankwise.weights.plain_files import beside, open_bytes, read_small, warn_if_cut_off
from rankwise.weights.rebuilding import sizes_of
from rankwise.weights.tensor_records import (
    ITEM_SIZES,
    CheckpointError,
    Content,
    Damaged,
    Extent,
    StateDictNode,
    TensorPiece,
    TensorRecord,
    as_damage,
    check_cover,
    contiguous,
    joined_content,
)

MAX_HEADER = 100_000_000  # the format's own limit
CRC_KEY = "rankwise.crc32"  # in the header's __metadata__: {name: CRC-32 in hexadecimal}, because the format itself has no checksum
NOTES_KEY = "rankwise.modules"  # likewise: torch's notes about each module, mostly its version
SHARDING_KEY = (
    "DCP_SHARDING_INFO"  # written by torch.distributed.checkpoint's HuggingFaceStorageWriter: where in each tensor the file's part begins
)
RANK_FILE = re.compile(r"shard-(\d+)-model-\d+-of-\d+\.safetensors")  # holds one rank's parts; that writer's other files hold whole tensors
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
    "BOOL": "bool", "C64": "complex64",
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
_PACKED_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}  # dtypes of the format that are not read here, and their bits


def header_of(tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes in front of the tensors, which follow in the order of `tensors` (dtype and shape by name)."""
    entries: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, (dtype, shape) in tensors.items():
        end = at + math.prod(shape) * ITEM_SIZES[dtype]
        entries[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read_safetensors(path: Path, data: Any | None = None) -> Content:
    """The content of one file."""
    data = open_bytes(path) if data is None else data
    start = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or start - 8 > MAX_HEADER or start > len(data):
        raise Damaged(f"a header of {start - 8:,} bytes is declared, the file has {len(data):,}")
    header = parse_json(data[8:start], "its header")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict):
        raise Damaged("its __metadata__ is not a dictionary")
    crcs = _crcs(metadata)
    records = {name: _record(path, name, entry, start, data, crcs.get(name)) for name, entry in header.items()}
    _check_places(records, start, len(data))
    if SHARDING_KEY in metadata:
        records = _parts(path, records, metadata[SHARDING_KEY])
    # safetensors.torch.save_model notes here which names it left out as the same tensor
    same = {name: records[kept] for name, kept in metadata.items() if name not in records and isinstance(kept, str) and kept in records}
    return Content("safetensors", StateDictNode({**records, **same}, _notes(metadata)), (path,))


def read_index(path: Path, read: Callable[[Path], Content]) -> Content:
    """Several files, by an index that says which tensor is in which (HuggingFace's model.safetensors.index.json). `read` reads a file."""
    weight_map = parse_json(read_small(path, MAX_HEADER), path.name).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise Damaged(f"{path.name} has no weight_map from names to files")
    contents = {shard: read(beside(path.parent, shard, path.name)) for shard in dict.fromkeys(weight_map.values())}
    records = {}
    for name, shard in weight_map.items():
        record = contents[shard].tree.get(name)
        if not isinstance(record, TensorRecord):
            raise Damaged(f"{path.name} says that {name[:100]} is in {shard}, where it is not")
        records[name] = record
    warn_if_cut_off(path, [file for content in contents.values() for file in content.files])
    kinds = {content.format for content in contents.values()}
    index = Content("index", {}, (path,))
    return joined_content(f"sharded {' and '.join(sorted(kinds)) or 'safetensors'}", records, [index, *contents.values()])


def _parts(path: Path, records: dict[str, TensorRecord], text: Any) -> dict[str, TensorRecord]:
    """Each tensor as one rank's part, which does not say how large the whole is; or as a whole, if the file is not named as a rank's."""
    begins = parse_json(str(text).encode(), SHARDING_KEY)
    found = {}
    for name, record in records.items():
        with as_damage(f"its {SHARDING_KEY} does not place {name[:100]!r}"):
            offsets = sizes_of(begins[name]["saved_offsets"])
        if len(offsets) != len(record.shape):
            raise Damaged(f"{name[:100]!r} of shape {list(record.shape)} begins at {list(offsets)} of the whole")
        is_whole = not any(offsets) and RANK_FILE.fullmatch(path.name) is None
        why = f"it is one rank's part, {list(record.shape)} at {list(offsets)}; give the folder with the files of all ranks"
        found[name] = record if is_whole else replace(record, unreadable=why, part=TensorPiece(offsets, record.shape, part=record))
    return found


def join_rank_files(contents: Sequence[Content]) -> Content:
    """One content from the parts that all ranks wrote. No file says how large a tensor is, so its size is what the parts add up to."""
    numbers = [int(match[1]) for content in contents if (match := RANK_FILE.fullmatch(content.files[0].name))]
    if sorted(numbers) != list(range(1, len(contents) + 1)):
        raise CheckpointError("RW736", f"files of ranks are missing: {numbers[-1]} is the last number, {len(numbers)} are there")
    parts: dict[str, dict[tuple[int, ...], TensorRecord]] = {}
    for content in contents:
        for name, record in content.tree.items():
            if record.part is None:
                raise Damaged(f"{content.files[0].name} does not say which part of {name[:100]} it holds")
            known = parts.setdefault(name, {})
            if known.setdefault(record.part.offsets, record) is not record:
                raise Damaged(f"two files hold the part of {name[:100]} at {list(record.part.offsets)}; one of them is of another save")
    note = "the sizes of the tensors are what the ranks' parts add up to"
    return joined_content(
        f"safetensors of {len(contents)} ranks", {name: _whole(name, each) for name, each in parts.items()}, contents, (note,)
    )


def _whole(name: str, parts: dict[tuple[int, ...], TensorRecord]) -> TensorRecord:
    first, *others = parts.values()
    if any(other.dtype != first.dtype or len(other.shape) != len(first.shape) for other in others):
        raise Damaged(f"the files of the ranks disagree about {name[:100]}")
    boxes = [(offsets, record.shape) for offsets, record in parts.items()]
    shape = tuple(max(ends) for ends in zip(*([o + s for o, s in zip(*box)] for box in boxes)))
    check_cover(name, shape, boxes)
    chunks = tuple(record.part for record in parts.values() if record.part is not None and record.numel)
    return TensorRecord(first.dtype, shape, chunks=chunks) if chunks else replace(first, unreadable="", part=None)


def _record(path: Path, name: str, entry: Any, start: int, data: Any, crc: int | None) -> TensorRecord:
    with as_damage(f"its header describes {name[:100]!r} wrongly"):
        packed = _PACKED_BITS.get(entry["dtype"])
        dtype = entry["dtype"].lower() if packed else DTYPES[entry["dtype"]]
        shape = tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        is_valid = all(type(number) is int and number >= 0 for number in (*shape, begin, end)) and begin <= end
    if not is_valid or math.prod(shape) * (packed or 8 * ITEM_SIZES[dtype]) != 8 * (end - begin):
        raise Damaged(f"{name[:100]!r} is declared as {dtype}{list(shape)[:16]} in bytes {begin} to {end}, which is not its size")
    if start + end > len(data):
        raise Damaged(f"{name[:100]!r} should end at byte {start + end:,}, the file at {len(data):,}")
    why = f"it is {dtype}, of which several numbers share a byte" if packed else ""
    return TensorRecord(dtype, shape, Extent(path, start + begin, end - begin, crc, data.stamp), 0, contiguous(shape), unreadable=why)


def _check_places(records: dict[str, Any], start: int, size: int) -> None:
    """Raise Damaged unless the tensors fill the file to its end, one behind the other without holes, as the format demands."""
    at = start
    for begin, nbytes, name in sorted((record.storage.offset, record.storage.nbytes, name) for name, record in records.items()):
        if begin != at:
            what = "overlaps the one before it" if begin < at else "leaves a hole before it"
            raise Damaged(f"{name[:100]!r} begins at byte {begin - start:,} of the tensors, which {what}: {at - start:,} was to be next")
        at += nbytes
    if at != size:
        raise Damaged(f"its tensors end at byte {at:,}, the file at {size:,}")


def parse_json(content: bytes, what: str) -> dict[str, Any]:
    """A JSON object; raises Damaged if a name is in it twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise Damaged(f"a name stands twice in {what}")
        return found

    try:
        parsed = json.loads(bytes(content), object_pairs_hook=once)
    except Damaged:
        raise
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{what} is not valid JSON ({str(error)[:100]})") from error
    if not isinstance(parsed, dict):
        raise Damaged(f"{what} is not a JSON object")
    return parsed


def _notes(metadata: dict[str, Any]) -> dict[str, dict[str, Any]]:
    text = metadata.get(NOTES_KEY)
    notes = parse_json(text.encode(), NOTES_KEY) if isinstance(text, str) else {}
    return {name: about for name, about in notes.items() if isinstance(about, dict)}


def _crcs(metadata: dict[str, Any]) -> dict[str, int]:
    text = metadata.get(CRC_KEY)
    crcs = parse_json(text.encode(), CRC_KEY) if isinstance(text, str) else {}
    try:
        return {name: int(crc, 16) for name, crc in crcs.items()}
    except (TypeError, ValueError) as error:
        raise Damaged(f"{CRC_KEY} holds no checksums") from error
