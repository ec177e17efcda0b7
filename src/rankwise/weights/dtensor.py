"""DTensors in files of torch.save: the part of a tensor that one rank saved, and the whole tensor from the files of all ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rankwise.weights.opcodes import FunctionCall, Global
from rankwise.weights.tensor_records import Content, Damaged, StateDictNode, TensorPiece, TensorRecord, check_cover, joined_content


def is_dtensor(kind: Any) -> bool:
    return isinstance(kind, Global) and kind.name == "DTensor" and kind.module.startswith("torch.distributed.")


def attributes_of(state: Any) -> Mapping[str, Any]:
    """The attributes of a DTensor in a pickle, among them its local tensor and its placement."""
    found = next((part for part in (state if isinstance(state, tuple) else (state,)) if isinstance(part, dict)), None)
    if found is None:
        raise Damaged("a DTensor has no attributes")
    return found


def dtensor_record(shape: tuple[int, ...], attributes: Mapping[str, Any], local: TensorRecord) -> TensorRecord:
    """The record of the local tensor, if that is the whole; otherwise a record that knows which part of the whole it is."""
    spec = _state_of(attributes["_spec"])
    kinds = [(placement.target.name, _state_of(placement).get("dim")) for placement in spec["placements"]]
    if other := [name for name, _ in kinds if name not in ("Replicate", "Shard")]:
        return TensorRecord(local.dtype, shape, unreadable=f"it is a DTensor placed by {other[0]}, whose parts only its ranks can join")
    if local.shape == shape:
        return local
    mesh = _state_of(spec["mesh"])
    offsets, sizes = _box(shape, kinds, _mesh_shape(mesh), mesh.get("_coordinate_on_dim"))
    if sizes != local.shape:
        raise Damaged(f"a rank's part of a tensor is {list(local.shape)}, where {list(sizes)} of {list(shape)} is its share")
    rank = mesh.get("_rank") if isinstance(mesh.get("_rank"), int) else None
    who = f"rank {rank}'s part" if rank is not None else "one rank's part"
    why = f"it is {who}, {list(local.shape)} of {list(shape)}; give the folder with the files of all ranks"
    return TensorRecord(local.dtype, shape, unreadable=why, part=TensorPiece(offsets, sizes, part=local))


def join_ranks(contents: Sequence[Content]) -> Content:
    """One content from the contents of all ranks; raises Damaged if these are not the files of all ranks of one job."""
    tree = _joined([content.tree for content in contents], "")
    return joined_content(f"DTensors of {len(contents)} ranks", tree, contents, notes=("plain tensors are those of the first file",))


def has_rank_parts(tree: Any) -> bool:
    """Whether any tensor in the tree is only one rank's part."""
    if isinstance(tree, TensorRecord):
        return tree.part is not None
    return isinstance(tree, dict) and any(has_rank_parts(value) for value in tree.values())


def _joined(values: Sequence[Any], name: str) -> Any:
    first = values[0]
    if isinstance(first, dict) and all(isinstance(value, dict) for value in values):
        if any(value.keys() != first.keys() for value in values):
            raise Damaged(f"the files of the ranks have different names{f' under {name}' if name else ''}")
        joined = {key: _joined([value[key] for value in values], f"{name}.{key}" if name else str(key)) for key in first}
        return StateDictNode(joined, first.notes) if isinstance(first, StateDictNode) else joined
    records = [value for value in values if isinstance(value, TensorRecord)]
    if not records or all(record.part is None for record in records):
        return first
    return _whole(name, records)


def _whole(name: str, records: list[TensorRecord]) -> TensorRecord:
    """All parts together. A part that several ranks saved is taken once; ranks may also have saved empty parts."""
    if len({(record.dtype, record.shape) for record in records}) > 1:
        raise Damaged(f"the files of the ranks disagree about {name}")
    all_parts = [record.part or TensorPiece((0,) * len(record.shape), record.shape, part=record) for record in records]
    parts = {part.offsets: part for part in all_parts if math.prod(part.sizes)}
    check_cover(name, records[0].shape, [(part.offsets, part.sizes) for part in parts.values()])
    return replace(records[0], unreadable="", part=None, chunks=tuple(parts.values()))


def _box(
    shape: tuple[int, ...], kinds: list[tuple[str, Any]], mesh: Sequence[int], coordinate: Any
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where a rank's part begins and how large it is: cut as torch.chunk cuts, along one dimension of the mesh after the other."""
    if not isinstance(coordinate, (tuple, list)) or len(coordinate) != len(kinds) or len(mesh) != len(kinds):
        raise Damaged("a DTensor does not say which part of the mesh it is from")
    offsets, sizes = [0] * len(shape), list(shape)
    for (name, dim), count, at in zip(kinds, mesh, coordinate):
        if name == "Shard":
            if not isinstance(dim, int) or not -len(shape) <= dim < len(shape) or not 0 <= at < count:
                raise Damaged(f"a DTensor of {len(shape)} dimensions is sharded along dimension {dim}")
            step = -(-sizes[dim] // count)
            begin = min(at * step, sizes[dim])
            offsets[dim] += begin
            sizes[dim] = min(step, sizes[dim] - begin)
    return tuple(offsets), tuple(sizes)


def _mesh_shape(mesh: Mapping[str, Any]) -> tuple[int, ...]:
    """The number of ranks along each dimension of the mesh, in the forms in which versions of torch write it."""
    if isinstance(layout := mesh.get("_layout"), FunctionCall):
        axes = _state_of(layout)["axes"]
        return tuple(math.prod(_state_of(axis)["shape"]) if isinstance(axis, FunctionCall) else math.prod(axis) for axis in axes)
    tensor = mesh.get("mesh", mesh.get("_mesh"))
    return tuple(tensor.args[2]) if isinstance(tensor, FunctionCall) else ()


def _state_of(value: Any) -> Mapping[str, Any]:
    if isinstance(value, FunctionCall) and isinstance(value.state, dict):
        return value.state
    if isinstance(value, FunctionCall) and value.state is None:
        return {"dim": value.args[0]} if value.args else {}
    raise Damaged("a DTensor is described wrongly")
