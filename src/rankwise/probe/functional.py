"""Notes the functional collectives of DTensor and FSDP2: they reach torch's C++ operators past the functions of `torch.distributed`."""

import functools
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import calls, hooks, process, ring, splits

# Function (some also exist with _autograd): the operation it is noted as in the ring.
_OPS = {
    "broadcast": "broadcast",
    "all_reduce": "all_reduce",
    "all_gather_single": "all_gather_into_tensor",
    "all_gather_tensor": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_tensor": "reduce_scatter_tensor",
    "all_to_all_single": "all_to_all_single",
    "all_reduce_coalesced": "all_reduce_coalesced",
    "all_gather_single_coalesced": "all_gather_coalesced",
    "all_gather_into_tensor_coalesced": "all_gather_coalesced",
    "reduce_scatter_single_coalesced": "reduce_scatter_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_coalesced",
}


def attach(module: ModuleType) -> None:
    for name, op in _OPS.items():
        for own_name in (name, f"{name}_autograd"):
            original = getattr(module, own_name, None)
            if original is not None:
                setattr(module, own_name, _noted(module, original, ring.NUMBER[op]))


def _noted(module: ModuleType, original: Callable[..., Any], op: int) -> Callable[..., Any]:
    import torch

    group_at = list(inspect.signature(original).parameters).index("group")

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # the compiler traces straight through to the original
            return original(*args, **kwargs)
        opened = _begin(module, op, sys._getframe(1), args, kwargs, group_at)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            calls.end(opened, None, error)
            hooks.drop_wrapper_frame(error)
            raise
        calls.end(opened)
        return result

    return call


def _begin(module: ModuleType, op: int, frame: Any, args: Any, kwargs: Any, group_at: int) -> calls.Opened:
    try:
        record = ring.current or ring.open_ring(process.live)
        if record is None:
            return None
        tensor = args[0] if args and hasattr(args[0], "dtype") else None
        group = args[group_at] if group_at < len(args) else kwargs.get("group")
        n = record.enter(op, frame, tensor, _group_name(module, group))
        if op == ring.NUMBER["all_to_all_single"]:
            calls.note_splits(record, n, splits.of_functional, args, kwargs)
        return record, n
    except Exception as error:
        hooks.note_broken(ring.OPS[op], error)
        return None


def _group_name(module: ModuleType, group: Any) -> str:
    """A group is given in many forms (its name, itself, a mesh, a mesh and a dimension); torch resolves them all to a name."""
    if isinstance(group, str):
        return group
    name = getattr(group, "group_name", None)
    return str(module._resolve_group_name(group) if name is None else name)
