"""Says in words what a pickle would have run beyond rebuilding tensors; a checkpoint that needs it is refused."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rankwise.weights.opcodes import FunctionCall, Global, Persistent, Pickled
from rankwise.weights.rebuilding import STORAGE_DTYPES
from rankwise.weights.state_dicts import find_state_dicts
from rankwise.weights.tensor_records import ITEM_SIZES, CheckpointError, Content

_ROOM = 160  # of one call, in characters

_REBUILD = {
    "_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter", "_rebuild_parameter_with_state",
    "_rebuild_sparse_tensor", "_rebuild_qtensor", "_rebuild_nested_tensor", "_rebuild_wrapper_subclass",
    "_rebuild_meta_tensor_no_storage", "_rebuild_device_tensor_from_numpy", "_rebuild_device_tensor_from_cpu_tensor",
}  # fmt: skip
_STORAGES = STORAGE_DTYPES.keys() - {"UntypedStorage"}
_QUANTIZED = {
    *("QInt8Storage", "QUInt8Storage", "QInt32Storage", "qint8", "quint8", "qint32"),
    *(f"per_{kind}_{scheme}" for kind in ("tensor", "channel") for scheme in ("affine", "symmetric")), "per_channel_affine_float_qparams",
}  # fmt: skip
# What torch.load(weights_only=True) accepts too (a test compares the two); it cannot be made to run anything.
HARMLESS = (
    {"collections.OrderedDict", "collections.Counter", "builtins.set", "builtins.bytearray", "builtins.complex", "_codecs.encode"}
    | {f"torch._utils.{name}" for name in _REBUILD}
    | {f"torch.{name}" for name in _STORAGES}
    | {f"torch.cuda.{name}" for name in _STORAGES}
    | {f"torch.{name}" for name in (*ITEM_SIZES, *_QUANTIZED)}
    | {"torch.storage.UntypedStorage", "torch.storage.TypedStorage", "torch._tensor._rebuild_from_type_v2"}
    | {"torch.nn.parameter.Parameter", "torch.Tensor", "torch.Size", "torch.device", "torch.serialization._get_layout"}
)
# What a DTensor is described with; torch accepts these once torch.distributed.tensor is imported.
_TENSOR = "torch.distributed.tensor"
DTENSOR = {
    *(f"{_TENSOR}.{name}" for name in ("DTensor", "placement_types.Shard", "placement_types.Replicate", "placement_types.Partial")),
    *(f"{_TENSOR}._dtensor_spec.{name}" for name in ("DTensorSpec", "TensorMeta", "ShardOrderEntry")),
    "torch.distributed._mesh_layout._MeshLayout", "torch.distributed._mesh_layout._FlatLayout", "torch.distributed.device_mesh.DeviceMesh",
    "torch.distributed._tensor.api.DTensor", "torch.distributed._tensor.placement_types.DTensorSpec",
    "torch.distributed._tensor.placement_types.TensorMeta", "torch.distributed._tensor.placement_types.Shard",
    "torch.distributed._tensor.placement_types.Replicate", "torch.distributed.tensor.placement_types._StridedShard",
}  # fmt: skip
_SHOWN = 8


def what_would_run(pickled: Pickled, harmless: Collection[str] = HARMLESS | DTENSOR) -> tuple[str, ...]:
    """Every import and call that is not known to be harmless, as Python would write it: `posix.system('rm -rf /')`."""
    calls = [call_text(call) for call in pickled.calls if str(call.target) not in harmless]
    called = {str(call.target) for call in pickled.calls}
    imports = [f"import {wanted}" for wanted in pickled.imports if str(wanted) not in harmless and str(wanted) not in called]
    return tuple(dict.fromkeys(calls + imports))


def call_text(call: FunctionCall) -> str:
    text = f"{_short(call.target)}({', '.join(map(_short, call.args[:6]))})"
    if call.state is not None:
        text += f".__setstate__({_short(call.state)})"
    return text if len(text) <= _ROOM else f"{text[:_ROOM]}…"


def _short(value: Any, depth: int = 2) -> str:
    """A value in few characters; what is nested deeper than two levels is `…`."""
    if isinstance(value, Global):
        return str(value)
    if isinstance(value, FunctionCall):
        return f"{_short(value.target, 0)}({', '.join(_short(arg, depth - 1) for arg in value.args[:4])})" if depth else "…"
    if isinstance(value, Persistent):
        # torch before 1.6 wrote the classes of modules so
        is_class = isinstance(value.id, tuple) and value.id[:1] == ("module",) and len(value.id) > 1
        return _short(value.id[1]) if is_class else "<storage>"
    if isinstance(value, (list, tuple, dict)):
        inside = islice(value.items() if isinstance(value, dict) else value, 4)
        return f"{type(value).__name__}({', '.join(_short(item, depth - 1) for item in inside)})" if depth > 0 else "…"
    if isinstance(value, int) and value.bit_length() > 200:
        return f"<a number of {value.bit_length():,} bits>"
    if isinstance(value, (str, bytes)):
        return repr(value[:100])
    return repr(value)[:100]


def check_harmless(content: Content, path: Path, tensors_only: bool) -> None:
    """Raise if the checkpoint asks for more than tensors. Nothing that it asks for has run, or will run."""
    if content.would_run and not (tensors_only and content.tree):
        raise refusal(path, content.format, content.would_run, has_tensors=bool(find_state_dicts(content)))


def refusal(path: Path, format: str, would_run: Sequence[str], has_tensors: bool) -> CheckpointError:
    shown = would_run[:_SHOWN]
    more = [f"and {len(would_run) - len(shown):,} more"] if len(would_run) > len(shown) else []
    steps = ("its tensors alone can be read, without building anything: tensors_only=True (--tensors-only)",) if has_tensors else ()
    if format == "pickle":
        steps = ("if you trust it: pickle.load reads it, torch.save writes its tensors",)
    why = "\n".join(["it asks for", *shown, *more])
    return CheckpointError("RW731", f"{path} would run code when loaded, and was refused", why=why, next=steps)
