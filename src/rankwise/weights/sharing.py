"""Memory that several names of a model share. It can hold one value only, so the checkpoint must have the same value for all of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from itertools import pairwise
from typing import Any

import torch

from rankwise.weights.tensor_records import CheckpointError

Read = Callable[[str], torch.Tensor]  # the checkpoint's value for a name of the model


def memory_of(tensor: torch.Tensor) -> Hashable:
    """An identity that two tensors share if they share memory; a tensor without memory of its own shares with none."""
    storage = _storage(tensor)
    if storage is None or tensor.numel() == 0:
        return id(tensor)
    return tensor.device, storage.data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def write_into(target: torch.Tensor, value: torch.Tensor) -> None:
    """Copy, also into a tensor that torch refuses to write to because it was expanded: its one element, or row, is written once."""
    for dim, (size, stride) in enumerate(zip(target.shape, target.stride() if target.layout == torch.strided else ())):
        if size > 1 and stride == 0:
            target, value = target.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
    target.copy_(value)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both have the same shape, dtype and bits; NaN is equal to the same NaN, and 0.0 is not -0.0."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(bytes_of(one), bytes_of(other))


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def check_overlaps(tensors: Mapping[str, torch.Tensor], read: Read, path: str) -> None:
    """Raise if filling one tensor would change another that has a different value in the checkpoint; tried on a copy of the memory."""
    for names in _overlapping(tensors):
        storage = tensors[names[0]].untyped_storage().clone()  # type: ignore[no-untyped-call]
        views = {name: _same_view(tensors[name], storage) for name in names}
        for name, view in views.items():
            try:
                write_into(view, read(name))
            except RuntimeError as error:
                raise _differ(name, name, path, str(error).splitlines()[0]) from error
        for name, view in views.items():
            if not same_bits(view, read(name).to(view.dtype)):
                other = next((other for other in reversed(names) if other != name), name)
                raise _differ(name, other, path)


def _differ(name: str, other: str, path: str, why: str = "") -> CheckpointError:
    who = f"elements of {name}" if name == other else f"{name} and {other}"
    return CheckpointError("RW737", f"{who} share memory in the model and have different values in {path}", why=why)


def _overlapping(tensors: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Groups of names whose tensors overlap in memory, in part or shifted; a tensor that overlaps with itself is in a group too."""
    by_storage: dict[Any, dict[Hashable, str]] = {}
    for name, tensor in tensors.items():
        storage = _storage(tensor)
        if storage is not None and tensor.numel():
            by_storage.setdefault((tensor.device, storage.data_ptr()), {}).setdefault(memory_of(tensor), name)
    groups = []
    for views in by_storage.values():
        names = sorted(views.values(), key=lambda name: _span(tensors[name]))
        spans = [_span(tensors[name]) for name in names]
        if any(later[0] < earlier[1] for earlier, later in pairwise(spans)) or any(_is_expanded(tensors[name]) for name in names):
            groups.append(names)
    return groups


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """From which byte to which byte of its storage it reaches."""
    item = tensor.element_size()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return int(tensor.storage_offset()) * item, (int(tensor.storage_offset()) + last + 1) * item


def _is_expanded(tensor: torch.Tensor) -> bool:
    """Whether several of its elements share one place in memory, by the same test of its strides as torch makes."""
    reach = 0
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _same_view(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    if tensor.is_meta or tensor.layout != torch.strided:
        return None
    try:
        storage = tensor.untyped_storage()
        return storage if storage.data_ptr() else None
    except (NotImplementedError, RuntimeError):  # a subclass that only wraps others
        return None
