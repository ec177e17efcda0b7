"""Replicas of a model read the same copy of its weights: it takes its memory once, and the processor's cache holds it once.

Each replica builds its model by itself. The first one copies its large parameters to a file in memory; a replica whose own are the same
to the byte reads them from there. The file is mapped privately: what a model writes to its parameters stays with it."""

from __future__ import annotations

import ctypes
import fcntl
import marshal
import os
from typing import Any

import torch

from rankwise.pool.memory.shared_memory import Segment, rounded

_LEAST_BYTES = 64 << 10  # smaller parameters stay where they are
_PIECE = 1 << 30  # bytes that are written at once; the kernel takes no more than two of these
_use_count = getattr(torch._C, "_storage_Use_Count", None)
_libc = ctypes.CDLL(None)


def share_weights(built: Any, fd: int) -> None:
    """Read large parameters from the file, or put them there first where it is empty. On any failure the model keeps its own."""
    groups = _unaliased(built) if isinstance(built, torch.nn.Module) else []
    if not groups:
        return
    sizes = [storage.nbytes() for storage, _ in groups]
    total, index = sum(map(rounded, sizes)), marshal.dumps(sizes)
    fcntl.lockf(fd, fcntl.LOCK_EX)  # also given back when this process dies
    try:
        is_first = os.fstat(fd).st_size == 0
        if is_first:
            os.ftruncate(fd, total)
        elif os.pread(fd, len(index) + 1, total) != index:  # another model, or the replica that wrote it died meanwhile
            return
        view = Segment(fd, total, private=True).view
        start = 0
        for (storage, parameters), size in zip(groups, sizes):
            if is_first:
                _write(fd, storage, start)
            if is_first or _is_same(storage, int(view.ctypes.data) + start):
                _move(parameters, torch.from_numpy(view[start : start + size]).untyped_storage())
            start += rounded(size)
        if is_first:
            os.pwrite(fd, index, total)  # last: it says that the file is whole
    finally:
        fcntl.lockf(fd, fcntl.LOCK_UN)


def _unaliased(module: torch.nn.Module) -> list[tuple[torch.UntypedStorage, list[torch.nn.Parameter]]]:
    """The memory of large parameters, and the parameters in it. Not where anything else refers to it, such as a view that the model has
    kept: it would no longer see what is written to the parameter. Buffers stay, because models do write to them."""
    if _use_count is None:
        return []
    groups: dict[int, tuple[torch.UntypedStorage, list[torch.nn.Parameter]]] = {}
    for parameter in module.parameters():
        if _is_plain(parameter):
            storage = parameter.untyped_storage()
            groups.setdefault(storage.data_ptr(), (storage, []))[1].append(parameter)
    return [
        (storage, parameters)
        for storage, parameters in groups.values()
        if storage.nbytes() >= _LEAST_BYTES and _use_count(storage._cdata) == len(parameters) + 1  # and the object in our hands
    ]


def _is_plain(parameter: torch.nn.Parameter) -> bool:
    return (
        type(parameter) is torch.nn.Parameter
        and parameter.device.type == "cpu"
        and parameter.layout is torch.strided
        and not (parameter.is_quantized or parameter.is_conj() or parameter.is_neg() or parameter.is_inference())
    )


def _write(fd: int, storage: torch.UntypedStorage, start: int) -> None:
    data = memoryview((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())).cast("B")
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done : done + _PIECE], start + done)


def _is_same(storage: torch.UntypedStorage, address: int) -> bool:
    return int(_libc.memcmp(ctypes.c_void_p(storage.data_ptr()), ctypes.c_void_p(address), ctypes.c_size_t(storage.nbytes()))) == 0


def _move(parameters: list[torch.nn.Parameter], storage: torch.UntypedStorage) -> None:
    for parameter in parameters:
        there = torch.empty(0, dtype=parameter.dtype, device="cpu")
        parameter.data = there.set_(storage, parameter.storage_offset(), parameter.shape, parameter.stride())
