"""Turns the calls in a torch pickle into TensorRecords: torch's _rebuild functions are read instead of run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rankwise.weights.dtensor import attributes_of, dtensor_record, is_dtensor
from rankwise.weights.opcodes import FunctionCall, Global, Persistent
from rankwise.weights.tensor_records import ITEM_SIZES, Damaged, Extent, StateDictNode, TensorRecord, Unbuilt, as_damage

STORAGE_DTYPES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8",
    "BoolStorage": "bool", "ComplexDoubleStorage": "complex128", "ComplexFloatStorage": "complex64", "UntypedStorage": "uint8",
}  # fmt: skip
# Calls whose first argument is the tensor: a parameter, or one that was on a device of XLA or MTIA
_AROUND_ANOTHER = {f"torch._utils._rebuild_{kind}" for kind in ("parameter", "parameter_with_state", "device_tensor_from_cpu_tensor")}
_MAX_DEPTH = 64
_MAX_BITS = 200  # of a key that is a whole number: Python refuses to print very long ones
_MAX_NAMED = 5_000_000

# (key, dtype, number of bytes that the pickle declares) → where the bytes are
FindStorage = Callable[[str, str, int], Extent]


def plain_tree(value: Any, find_storage: FindStorage) -> Any:
    """The value with a record in place of every tensor, and Unbuilt in place of whatever is neither tensor nor plain data."""
    return _Rebuilder(find_storage).plain(value, 0)


class _Rebuilder:
    def __init__(self, find_storage: FindStorage) -> None:
        self._find_storage = find_storage
        self._num_named = 0  # names made so far, of modules that were saved whole
        self._done: dict[int, Any] = {}  # results by id, so that shared parts are walked once

    def plain(self, value: Any, depth: int) -> Any:
        if isinstance(value, (str, int, float, bool, bytes, type(None))):
            return value
        if id(value) in self._done:
            return self._done[id(value)]
        if depth > _MAX_DEPTH:
            return Unbuilt("it is nested too deeply")
        self._done[id(value)] = Unbuilt("it contains itself")
        self._done[id(value)] = result = self._plain(value, depth + 1)
        return result

    def _plain(self, value: Any, depth: int) -> Any:
        if isinstance(value, dict):
            plain = {_key(key, index): self.plain(item, depth) for index, (key, item) in enumerate(value.items())}
            return StateDictNode(plain, value.notes) if isinstance(value, StateDictNode) else plain
        if isinstance(value, (list, tuple)):
            return type(value)(self.plain(item, depth) for item in value)
        if isinstance(value, FunctionCall):
            if value.items and str(value.target).startswith("collections."):
                pairs = enumerate(zip(value.items[::2], value.items[1::2]))
                return {_key(key, index): self.plain(item, depth) for index, (key, item) in pairs}
            if str(value.target) == "torch.Size":
                with suppress(Damaged), as_damage("a size"):
                    return sizes_of(value)
                return Unbuilt("torch.Size")
            if str(value.target).startswith("deepspeed."):
                return Unbuilt(str(value.target)[:80], self.plain(value.args if value.state is None else value.state, depth))
            return self._module(value.state, depth) if _is_module(value.state) else self.tensor(value)
        return Unbuilt(str(value)[:80])

    def _module(self, state: dict[str, Any], depth: int) -> dict[str, Any]:
        """The state dict of a module that was saved whole: its own tensors and those of its parts, by their dotted names."""
        passing = state.get("_non_persistent_buffers_set") or ()
        own = {**state["_parameters"], **{name: buffer for name, buffer in state["_buffers"].items() if name not in passing}}
        named = {str(name): self.plain(tensor, depth) for name, tensor in own.items() if tensor is not None}
        for name, part in state["_modules"].items():
            inner = self.plain(part, depth)
            inner = inner if isinstance(inner, dict) else {}
            self._num_named += len(inner)
            if self._num_named > _MAX_NAMED:
                raise Damaged(f"its modules have more than {_MAX_NAMED:,} tensors")
            named |= {f"{name}.{theirs}": tensor for theirs, tensor in inner.items()}
        return named

    def tensor(self, call: FunctionCall) -> Any:
        """The record of a tensor; Unbuilt for a call that does not make one."""
        name = str(call.target)
        args = call.args
        with as_damage(f"a tensor is described wrongly: {name[:80]}"):
            if name in _AROUND_ANOTHER:
                return self.tensor(args[0])
            if name == "torch._tensor._rebuild_from_type_v2" and is_dtensor(args[1]):
                return self._dtensor(args[2], args[3])
            if name == "torch._tensor._rebuild_from_type_v2":
                return self.tensor(FunctionCall(args[0], tuple(args[2])))
            if name in ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2"):
                return self._strided(args, None, args[6] if len(args) > 6 else None)
            if name == "torch._utils._rebuild_tensor_v3":
                return self._strided(args, args[6], args[7] if len(args) > 7 else None)
            if name.startswith("torch._utils._rebuild_"):
                kind = name.removeprefix("torch._utils._rebuild_").replace("_", " ")
                return TensorRecord("unknown", (), unreadable=f"it is a {kind}, which has no plain storage")
        return Unbuilt(name[:80])

    def _dtensor(self, args: tuple[Any, ...], state: Any) -> Any:
        attributes = attributes_of(state)
        local = self.tensor(attributes["_local_tensor"])
        return dtensor_record(sizes_of(args[2]), attributes, local) if isinstance(local, TensorRecord) and not local.unreadable else local

    def _strided(self, args: tuple[Any, ...], dtype_name: Any, flags: Any) -> TensorRecord:
        reference, first, shape, strides = args[:4]
        storage_dtype, storage = self._storage(reference)
        dtype = dtype_name.name if isinstance(dtype_name, Global) else storage_dtype
        if dtype not in ITEM_SIZES:
            return TensorRecord(dtype, tuple(shape), unreadable=f"its dtype {dtype} is not known")
        record = TensorRecord(dtype, sizes_of(shape), storage, first, sizes_of(strides))
        check_bounds(record)
        if isinstance(flags, dict) and any(flags.values()):
            return replace(record, unreadable="it is a lazily conjugated or negated view")
        return record

    def _storage(self, reference: Any) -> tuple[str, Extent]:
        if not isinstance(reference, Persistent) or not isinstance(reference.id, tuple) or len(reference.id) < 5:
            raise Damaged("a tensor refers to no storage")
        _, kind, key, _, count, *view = reference.id
        dtype = STORAGE_DTYPES.get(kind.name if isinstance(kind, Global) else "")
        if dtype is None or not isinstance(key, str) or not isinstance(count, int) or count < 0:
            raise Damaged(f"a storage is described wrongly: {str(reference.id)[:100]}")
        if view and view[0] is not None:
            raise Damaged("it holds views of storages, as torch 0.1 wrote them")
        return dtype, self._find_storage(key, dtype, count * ITEM_SIZES[dtype])


def _key(key: Any, index: int) -> Any:
    """A plain key as it is; any other key by its type and place, so that all keys stay different."""
    is_plain = isinstance(key, (str, int, float, bool, bytes, type(None))) and not (isinstance(key, int) and key.bit_length() > _MAX_BITS)
    return key if is_plain else f"{type(key).__name__.lower()} {index}"


def _is_module(state: Any) -> bool:
    return isinstance(state, dict) and all(isinstance(state.get(part), dict) for part in ("_parameters", "_buffers", "_modules"))


def check_bounds(record: TensorRecord) -> None:
    """Raise Damaged if an element lies outside of the storage."""
    if len(record.shape) != len(record.strides) or not isinstance(record.first, int) or record.first < 0:
        raise Damaged("a tensor's shape and strides do not belong together")
    if record.numel == 0 or record.storage is None:
        return
    last = record.first + sum((size - 1) * stride for size, stride in zip(record.shape, record.strides))
    needed = (last + 1) * ITEM_SIZES[record.dtype]
    if needed > record.storage.nbytes:
        raise Damaged(f"a tensor of shape {list(record.shape)} needs {needed:,} bytes of a storage that has {record.storage.nbytes:,}")


def sizes_of(values: Any) -> tuple[int, ...]:
    """A shape or strides, of plain numbers or as a call of torch.Size."""
    if isinstance(values, FunctionCall) and str(values.target) == "torch.Size":
        values = values.args[0] if values.args else ()
    sizes = tuple(values)
    if not all(isinstance(size, int) and 0 <= size < 1 << 62 for size in sizes) or len(sizes) > 64:
        raise Damaged(f"{str(sizes)[:80]} is not a shape")
    return sizes
