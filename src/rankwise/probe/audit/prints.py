"""Fingerprints of tensors: a few dozen of their numbers, taken on their own device and brought over in one copy."""

import math
import zlib
from array import array
from typing import Any

import torch

from . import record

_WHOLE = 64  # tensors up to so many numbers are taken whole
_TAKEN = 32
_COPIED = 1 << 20  # a tensor that has to be copied to be read in order must not be larger

Fingerprint = tuple[int, float | None]  # checksum of the sampled numbers; their norm, None where one is not finite


def fingerprints(tensors: list[Any]) -> list[Fingerprint | None]:
    """One for each tensor; None for what cannot be looked at without changing something (sharded, sparse, not there)."""
    if torch._C._len_torch_dispatch_stack() or _is_capturing():
        return [None] * len(tensors)
    with torch.no_grad():
        parts = [_numbers_of(tensor) for tensor in tensors]
        lists = _brought_over(parts)
    return [None if numbers is None else _fingerprint(numbers) for numbers in lists]


def numbers_of(tensor: Any, most: int) -> list[float]:
    """The first numbers of a tensor, as they are."""
    with torch.no_grad():
        part = _numbers_of(tensor)
        return [] if part is None else part[:most].tolist()


def some_of(tensor: Any) -> Any:
    """The numbers of a tensor that its fingerprint is made of, on its own device; None for what cannot be looked at."""
    if torch._C._len_torch_dispatch_stack() or _is_capturing():
        return None
    with torch.no_grad():
        return _numbers_of(tensor)


def fingerprint_of_bytes(tensor: Any) -> int:
    """The checksum of a small tensor of bytes."""
    try:
        return zlib.crc32(tensor.numpy())
    except RuntimeError:  # torch without NumPy
        return zlib.crc32(bytes(tensor.tolist()))


def is_plain(tensor: Any) -> bool:
    """A tensor of its own memory, not one that stands for parts on several ranks."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not tensor.is_meta
        and not tensor.is_quantized
    )


def _numbers_of(tensor: Any) -> Any:
    if tensor is None or not is_plain(tensor) or not tensor.numel() or not record.may_read(tensor):
        return None
    flat = _in_memory_order(tensor.detach())
    if flat is None:
        return None
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    size = flat.numel()
    return (flat if size <= _WHOLE else flat[:: max(1, size // _TAKEN)][:_TAKEN]).to(torch.float64)


def _in_memory_order(tensor: Any) -> Any:
    if tensor.is_contiguous():
        return tensor.view(-1)
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.reshape(-1) if tensor.numel() <= _COPIED else None


def _brought_over(parts: list[Any]) -> list[list[float] | None]:
    """All parts of a device in one copy: on a GPU each copy waits for what is queued there."""
    by_device: dict[Any, list[Any]] = {}
    for part in parts:
        if part is not None:
            by_device.setdefault(part.device, []).append(part)
    numbers = {device: iter(torch.cat(some).tolist()) for device, some in by_device.items()}
    return [None if part is None else [next(numbers[part.device]) for _ in range(part.numel())] for part in parts]


def _fingerprint(numbers: list[float]) -> Fingerprint:
    norm = math.sqrt(math.fsum(x * x for x in numbers)) if all(map(math.isfinite, numbers)) else None
    return zlib.crc32(array("d", numbers).tobytes()), norm


def _is_capturing() -> bool:
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    return torch.cuda.is_current_stream_capturing()
