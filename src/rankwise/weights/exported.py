"""The weights inside a torch.export program (.pt2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankwise.weights.rebuilding import check_bounds
from rankwise.weights.safetensors_file import parse_json
from rankwise.weights.tensor_records import Content, Damaged, TensorRecord, as_damage
from rankwise.weights.zipped import Archive

CONFIG = "data/weights/model_weights_config.json"
# torch._export.serde.schema.ScalarType
_SCALAR_TYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64", 9: "complex32",
    10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16", 29: "float8_e4m3fn", 30: "float8_e5m2",
}  # fmt: skip


def read_exported(path: Path, archive: Archive) -> Content:
    """The program's parameters and buffers; its code is left alone."""
    notes = ("the code is the program's own: torch.export.load(path).module() runs it",)
    if CONFIG not in archive.entries:
        return Content("torch.export program", {}, (path,), notes=notes)
    entries = parse_json(archive.read(CONFIG), CONFIG).get("config")
    if not isinstance(entries, dict):
        raise Damaged(f"{CONFIG} has no config")
    with as_damage(f"{CONFIG} describes a tensor wrongly"):
        tree: dict[Any, Any] = {name: _record(archive, entry) for name, entry in entries.items()}
    return Content("torch.export program", tree, (path,), notes=notes)


def _record(archive: Archive, entry: dict[str, Any]) -> TensorRecord:
    meta = entry["tensor_meta"]
    dtype = _SCALAR_TYPES.get(meta["dtype"], "")
    shape = tuple(size["as_int"] for size in meta["sizes"])
    if entry.get("use_pickle") or not dtype:
        return TensorRecord(dtype or "unknown", shape, unreadable="the program keeps it as a pickle")
    extent = archive.entries.get(f"data/weights/{entry['path_name']}")
    if extent is None:
        raise Damaged(f"data/weights/{entry['path_name']} is missing")
    strides = tuple(stride["as_int"] for stride in meta["strides"])
    record = TensorRecord(dtype, shape, extent, meta["storage_offset"]["as_int"], strides)
    if not all(type(number) is int and number >= 0 for number in (*shape, *strides)):
        raise Damaged(f"{str(shape)[:80]} is not a shape")
    check_bounds(record)
    return record
