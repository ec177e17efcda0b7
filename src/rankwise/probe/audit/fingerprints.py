"""Fingerprints of tensors: a few dozen of their numbers, taken on their own device and copied to the CPU at once.

On a GPU a blocking copy would wait for all that is queued there: in a job that hangs for ever, and not at the user's own line. So numbers
from a GPU are copied without waiting, and read once they have arrived.
"""

import math
import zlib
from array import array
from typing import Any

import torch

from . import record

_WHOLE = 64  # tensors up to so many numbers are taken whole
_TAKEN = 32
_COPIED = 1 << 20  # a tensor that has to be copied to be read in order must not be larger

Fingerprint = tuple[int, float | None]  # checksum of the sampled numbers, and their norm (None where one is not finite)


class PendingNumbers:
    """Some numbers of each tensor; None for a tensor that cannot be read without changing something (sharded, sparse, missing)."""

    def __init__(self, tensors: list[Any]) -> None:
        self._events: list[Any] = []
        self._hosts: dict[Any, Any] = {}
        self._parts: list[tuple[Any, int] | None] = [None] * len(tensors)
        if torch._C._len_torch_dispatch_stack() or _is_capturing():
            return
        with torch.no_grad():
            parts = [_numbers_of(tensor) for tensor in tensors]
            by_device: dict[Any, list[Any]] = {}
            for i, part in enumerate(parts):
                if part is not None and (part.device.type in ("cpu", "cuda") or record.LEVEL == "full"):
                    by_device.setdefault(part.device, []).append(part)
                    self._parts[i] = part.device, part.numel()
            for device, some in by_device.items():
                self._copy(device, torch.cat(some))

    def have_arrived(self) -> bool:
        return all(event.query() for event in self._events)

    def numbers(self) -> list[list[float] | None]:
        """The numbers; waits for those that have not arrived yet."""
        for event in self._events:
            event.synchronize()
        taken = {device: iter(host.tolist()) for device, host in self._hosts.items()}
        return [None if part is None else [next(taken[part[0]]) for _ in range(part[1])] for part in self._parts]

    def _copy(self, device: Any, numbers: Any) -> None:
        """The numbers of all tensors on one device."""
        if device.type != "cuda":
            self._hosts[device] = numbers.cpu()
            return
        host = self._hosts[device] = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        host.copy_(numbers, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        self._events.append(event)


def of_tensors(tensors: list[Any]) -> list[Fingerprint | None]:
    """The fingerprint of each tensor that can be read at once."""
    found = PendingNumbers([tensor if tensor is not None and record.may_read(tensor) else None for tensor in tensors]).numbers()
    return [of_numbers(numbers) for numbers in found]


def of_numbers(numbers: list[float] | None) -> Fingerprint | None:
    if numbers is None:
        return None
    norm = math.sqrt(math.fsum(x * x for x in numbers)) if all(map(math.isfinite, numbers)) else None
    return zlib.crc32(array("d", numbers).tobytes()), norm


def sample(tensor: Any) -> Any:
    """The numbers of a tensor that its fingerprint is made of, on its own device; None for a tensor that cannot be read."""
    if torch._C._len_torch_dispatch_stack() or _is_capturing():
        return None
    with torch.no_grad():
        return _numbers_of(tensor)


def of_bytes(tensor: Any) -> int:
    """The checksum of a small tensor of bytes."""
    try:
        return zlib.crc32(tensor.numpy())
    except RuntimeError:  # torch without NumPy
        return zlib.crc32(bytes(tensor.tolist()))


def is_plain(tensor: Any) -> bool:
    """Whether a tensor has its own memory, and does not stand for parts on several ranks."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not tensor.is_meta
        and not tensor.is_quantized
    )


def _numbers_of(tensor: Any) -> Any:
    if tensor is None or not is_plain(tensor) or not tensor.numel():
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


def _is_capturing() -> bool:
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    return torch.cuda.is_current_stream_capturing()
