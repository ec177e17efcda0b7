"""Replicas of a model read the same copy of its weights: it takes its memory once, and the processor's cache holds it once.

Each replica builds its model by itself. The first one copies its large parameters to a file in memory; a replica whose own are the same
to the byte reads them from there. The file is mapped privately: what a model writes to its parameters stays with it."""

from __future__ import annotations

import ctypes
import fcntl
import marshal
import os
import sys
from typing import Any

import torch

from rankwise.pool.memory.shared_memory import Segment, rounded

_LEAST_BYTES = 64 << 10  # smaller parameters stay where they are
_PIECE = 1 << 30  # bytes that are written at once; the kernel takes no more than two of these
_use_count: Any = getattr(torch._C, "_storage_Use_Count", None)
_libc = ctypes.CDLL(None)


def share_weights(built: Any, fd: int, is_program: bool = False) -> None:
    """Read large parameters from the file, or put them there first where it is empty. On any failure the model keeps its own."""
    groups = _unaliased(built, is_program) if isinstance(built, torch.nn.Module) else []
    if not groups:
        return
    sizes = [parameters[0].untyped_storage().nbytes() for parameters in groups]
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
        for parameters, size in zip(groups, sizes):
            storage = parameters[0].untyped_storage()  # of the one before, nothing is left
            if is_first:
                _write(fd, storage, start)
            if is_first or _is_same(storage, int(view.ctypes.data) + start):
                _move(parameters, torch.from_numpy(view[start : start + size]).untyped_storage())
            start += rounded(size)
        if is_first:
            os.pwrite(fd, index, total)  # last: it says that the file is whole
    finally:
        fcntl.lockf(fd, fcntl.LOCK_UN)


def _unaliased(module: torch.nn.Module, is_program: bool) -> list[list[torch.nn.Parameter]]:
    """Large parameters, those in one piece of memory together. Not where anything else refers to that, such as a view that the model has
    kept: it would no longer see what is written to the parameter. Nor where anything else may, because torch has not made it (numpy's, a
    mapped file; what a program was loaded to is its own), or other processes see it. Buffers stay, because models do write to them."""
    if _use_count is None:
        return []
    groups: dict[int, list[torch.nn.Parameter]] = {}
    for parameter in module.parameters():
        if _is_plain(parameter):
            groups.setdefault(parameter.untyped_storage().data_ptr(), []).append(parameter)
    return [
        parameters for parameters in groups.values() if _is_own(parameters[0], is_program) and _holders(parameters[0]) == len(parameters)
    ]


def _is_own(parameter: torch.nn.Parameter, is_program: bool) -> bool:
    storage = parameter.untyped_storage()
    return storage.nbytes() >= _LEAST_BYTES and (storage.resizable() or is_program) and not storage.is_shared()


def _holders(tensor: torch.Tensor) -> int:
    """How many refer to its memory: tensors, and whoever has Python's object for it, which is the same one for all."""
    alone = torch.empty(1, device="cpu")
    return int(_uses(tensor) - _uses(alone) + 1)


def _uses(tensor: torch.Tensor) -> Any:
    storage = tensor.untyped_storage()
    return _use_count(storage._cdata) + sys.getrefcount(storage)


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
