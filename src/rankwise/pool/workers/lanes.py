"""Shared memory of a worker. Inputs are tensors right on the parent's lane, mapped so that the model's writes stay private; outputs go to
the worker's own lane. Replicas of a model read the same copy of its weights."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import marshal
import mmap
import os
import socket
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch

from rankwise.pool.memory.encoding import (
    ALIGNED,
    COPIED_BYTES,
    EVEN,
    INLINE_BYTES,
    LANE_SHARE,
    NUMPY,
    TORCH_ONLY,
    UNEVEN,
    fitted,
    given,
    name_of_numpy,
    pack,
    unpack,
)
from rankwise.pool.memory.exceptions import failure
from rankwise.pool.memory.shared_memory import PAGE, Lane, Segment, copy_into, rounded
from rankwise.pool.transport.connection import SLOTS, StatusPage, send


def copy_place(array: np.ndarray[Any, Any], owner: Any) -> np.ndarray[Any, Any]:
    """For `pack`, if nothing leaves the process: the place of an array is a copy of it."""
    return np.array(array, order="C")


def to_value(place: Any, dtype: str, shape: tuple[int, ...], as_tensor: bool) -> Any:
    """For `unpack`: the value at a place that `copy_place` gave. numpy arrays become tensors as well, because models take tensors."""
    array = np.ndarray(shape, NUMPY[dtype], bytearray(place)) if type(place) is bytes else place
    return given(array, dtype, dtype != "raw")


class Inputs:
    """The lane as this worker maps it, and the parts of it that the current task uses."""

    def __init__(self) -> None:
        self.segments: list[Segment | OSError] = []  # an error says why a segment cannot be read here
        self.lacks_segment = False  # a task has needed a segment that cannot be read here
        self.in_use: list[tuple[Any, Segment, int, int]] = []  # the array behind each tensor, and where it lies
        self._kept: list[tuple[Segment, int, int]] = []  # where inputs lie that a model still refers to
        self.pagemap = open_pagemap()

    def add_segment(self, fds: list[int], size: int) -> None:
        """Map one more segment of the parent. A segment that cannot be mapped keeps its number, so that later ones have the right one."""
        try:
            if not fds:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))  # the kernel drops a descriptor that finds no free number here
            self.segments.append(Segment(fds[0], size, private=True))
        except OSError as error:
            self.segments.append(error)
        for fd in fds:  # the mapping stays without them
            os.close(fd)
        fds.clear()

    def get(self, place: Any, dtype: str, shape: tuple[int, ...], as_tensor: bool) -> Any:
        """For `unpack`: like `to_value`, but for arrays on the lane as well."""
        if type(place) is not bytes:
            number, offset, nbytes = place
            segment = self._segment(number)
            if self._kept:
                self._take_back(segment, offset, nbytes)
            place = np.ndarray(shape, NUMPY[dtype], segment.map, offset)
            self.in_use.append((place, segment, offset, nbytes))
        return to_value(place, dtype, shape, as_tensor)

    def raw(self, place: Any) -> bytes | memoryview:
        if type(place) is bytes:
            return place
        number, offset, nbytes = place
        return memoryview(self._segment(number).map)[offset : offset + nbytes]

    def _segment(self, number: int) -> Segment:
        segment = self.segments[number]
        if isinstance(segment, OSError):
            self.lacks_segment = True
            raise OSError(segment.errno, f"an input cannot be read in the worker: {segment.strerror}")
        return segment

    def alias(self, tensor: Any) -> tuple[Any, ...] | None:
        """The place on the lane where this output already lies, if it is an input (or part of one) that was not written to."""
        start, nbytes = tensor.data_ptr(), tensor.nbytes
        for _, segment, offset, size in self.in_use:
            first = segment.address + offset
            if first <= start and start + nbytes <= first + size:
                return ("i", self.segments.index(segment), start - segment.address, nbytes) if self._is_clean(start, nbytes) else None
        return None

    def is_kept(self) -> bool:
        """Whether the model has kept one of the task's inputs: then a tensor still refers to the array."""
        return any(sys.getrefcount(used[0]) > 2 for used in self.in_use)  # one is the tuple's, one the call's own

    def finish(self) -> None:
        """The task is done: discard what the model wrote to its inputs, so that the next task sees what the parent wrote. An input that the
        model has kept stays as it is, until a task has its input on these pages again: from `pool.empty`, or run once more."""
        for used in self.in_use:
            if sys.getrefcount(used[0]) > 2:
                self._kept.append(used[1:])
            else:
                self._discard(*used[1:])
        self.in_use.clear()

    def restore(self) -> None:
        """Discard what the model wrote to all inputs, in the middle of a task, to run it once more."""
        for used in self.in_use:
            self._discard(*used[1:])

    def _take_back(self, segment: Segment, offset: int, nbytes: int) -> None:
        first, last = offset // PAGE, (offset + nbytes - 1) // PAGE
        for kept in list(self._kept):
            if kept[0] is segment and kept[1] // PAGE <= last and (kept[1] + kept[2] - 1) // PAGE >= first:
                self._discard(*kept)
                self._kept.remove(kept)

    def _discard(self, segment: Segment, offset: int, nbytes: int) -> None:
        """Show the parent's bytes again. Looking for writes first takes a fraction of the time that mapping unchanged pages again would."""
        if not self._is_clean(segment.address + offset, nbytes):
            first = offset - offset % PAGE  # a part of a larger request need not begin at a page
            segment.map.madvise(mmap.MADV_DONTNEED, first, rounded(offset + nbytes - first))  # the next read sees what the file holds

    def _is_clean(self, start: int, nbytes: int) -> bool:
        return self.pagemap >= 0 and is_untouched(self.pagemap, start, nbytes)


_ALIAS_BYTES = 256 << 10  # below, a copy is cheaper than checking whether it can be avoided
_PATIENCE_S = 0.5
_SPARE = 8


class Outputs:
    """The segments that this worker made, and the slots that the parent has not given back yet."""

    def __init__(self, sock: socket.socket, page: StatusPage, soft_limit: int, alias: Any) -> None:
        self._sock, self._page, self._soft_limit, self._alias = sock, page, soft_limit, alias
        self._lane = Lane("rankwise-outputs")
        self._out: dict[int, tuple[int, int, int]] = {}  # slot: segment, offset, room
        self._free = list(range(SLOTS))
        self._collect_at = 0  # with so many slots in use, check which are free again: each check reads all of them
        self.inline_bytes = INLINE_BYTES  # up to here, an array goes into the message

    def put(self, array: np.ndarray[Any, Any], owner: Any) -> Any:
        """For `pack`: the bytes of the array, the place of the input that it is (part of), or a place in the worker's lane."""
        nbytes = array.nbytes
        if nbytes <= self.inline_bytes:
            return array.tobytes()
        if nbytes >= _ALIAS_BYTES and owner is not array and array.flags.c_contiguous:
            place = self._alias(owner)
            if place is not None:
                return place
        slot, number, offset = self._take(rounded(nbytes))
        copy_into(np.ndarray(array.shape, array.dtype, self._lane.segments[number].map, offset), array)
        return ("o", number, offset, nbytes, slot)

    def put_joined(self, arrays: list[bytes]) -> Any:
        """Several arrays of one size as one: in the message, if each of them alone would be in the message."""
        if len(arrays[0]) <= INLINE_BYTES:
            return b"".join(arrays)
        size = len(arrays[0])
        slot, number, offset = self._take(rounded(size * len(arrays)))
        there = memoryview(self._lane.segments[number].map)[offset:]
        for i, data in enumerate(arrays):
            there[i * size : (i + 1) * size] = data
        return ("o", number, offset, size * len(arrays), slot)

    def _take(self, room: int) -> tuple[int, int, int]:
        """Take a slot: its number, its segment and its offset. Waits until there is room."""
        if len(self._out) >= self._collect_at:
            self._collect()
        place = self._lane.take(room) if self._free else None
        started = time.monotonic()
        while place is None:
            self._collect()
            if self._free:
                is_late = time.monotonic() - started > _PATIENCE_S  # the parent copies what it can, so the user must be keeping it all
                place = self._lane.take(room) or self._grown(room, is_late)
            if place is None:
                time.sleep(0.0005)
        slot = self._free.pop()
        self._out[slot] = (*place, room)
        self._page.taken[slot] = True
        return (slot, *place)

    def _collect(self) -> None:
        for slot in [slot for slot in self._out if not self._page.taken[slot]]:
            number, offset, room = self._out.pop(slot)
            self._lane.give(number, offset, room)
            self._free.append(slot)
        self._collect_at = 2 * len(self._out) + _SPARE

    def _grown(self, room: int, must: bool) -> tuple[int, int] | None:
        place = self._lane.grow(room, self._soft_limit) or (self._lane.add(room, room) if must else None)
        if place is not None:
            segment = self._lane.segments[-1]
            send(self._sock, ("segment", segment.size), (segment.fd,), wait=True)
            segment.close()
        return place


MOST_BYTES = 48_000  # of results, in one message; requests beyond that run elsewhere, or later
_ROOM = 100  # bytes that a result takes besides its data


def requests_of(payload: tuple[Any, ...], inputs: Inputs) -> tuple[int, Callable[[int], Any]]:
    """The number of requests in a payload, and a function that gives the arguments of each by its index."""
    if payload[0] == EVEN:
        _, dtype, shape, count, place = payload
        if type(place) is bytes:
            return count, list(zip(_split(place, dtype, shape, count))).__getitem__
        each = cache(lambda: _split(inputs.raw(place), dtype, shape, count))  # only when they run, so that what it raises is their result
        return count, lambda i: (each()[i],)
    nodes = payload[1]
    return len(nodes), lambda i: unpack(nodes[i], inputs.get)


def _split(data: bytes | memoryview, dtype: str, shape: tuple[int, ...], count: int) -> list[torch.Tensor]:
    """The arrays that were sent as one. Each begins where torch would let a tensor begin, so results are the same to the last bit. Each has
    a storage of its own: a model that looks there (`as_strided`, `torch.save`) finds no other request."""
    nbytes, kind = len(data) // count, getattr(torch, dtype)
    if not nbytes:
        return [torch.empty(shape, dtype=kind, device="cpu") for _ in range(count)]
    room = torch.empty((count, -(-nbytes // ALIGNED) * ALIGNED), dtype=torch.uint8, device="cpu").numpy()[:, :nbytes]
    room[:] = np.frombuffer(data, np.uint8).reshape(count, nbytes)
    arrays = room.view(NUMPY[dtype]).reshape(count, *shape)
    tensors = list(map(torch.from_numpy, arrays if shape else [arrays[i, ...] for i in range(count)]))
    return [tensor.view(kind) for tensor in tensors] if dtype in TORCH_ONLY else tensors


class ChunkResults:
    """Collects the results of several requests. Each is copied at once: a model may return the same memory every time."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs, self._put = outputs, outputs.put
        self._data: list[bytes] = []  # of arrays, while all have one shape and type
        self._shape: tuple[int, ...] | None = None
        self._dtype: Any = None
        self._results: list[tuple[bool, Any]] | None = None  # of each request, if they are not
        self.size = 0  # in bytes

    def add(self, value: Any) -> None:
        if self._results is None:
            if type(value) is torch.Tensor:
                try:
                    array = value.numpy()
                except (RuntimeError, TypeError):  # not plain memory of this process
                    pass
                else:
                    if (array.shape == self._shape and array.dtype is self._dtype) or self._is_first(array):
                        data = array.tobytes()
                        self._data.append(data)
                        self.size += len(data) if len(data) <= INLINE_BYTES else len(data) // LANE_SHARE
                        return
            self._separate()
        node, size = fitted(pack(value, self._put), self._put)
        self._append(True, node, size)

    def fail(self, packed: tuple[bytes, str]) -> None:
        if self._results is None:
            self._separate()
        self._append(False, packed, len(packed[0]) + len(packed[1]))

    def packed(self) -> tuple[Any, ...]:
        if self._results is not None or self._shape is None:
            return UNEVEN, self._results or []
        try:
            return EVEN, name_of_numpy(self._dtype), self._shape, len(self._data), self._outputs.put_joined(self._data)
        except (OSError, MemoryError) as error:
            self.size = MOST_BYTES
            return UNEVEN, [(False, failure(error, MOST_BYTES // len(self._data)))] * len(self._data)

    def _is_first(self, array: np.ndarray[Any, Any]) -> bool:
        """Whether this is the first array, which sets the shape and type for the others."""
        if self._shape is not None or array.nbytes > COPIED_BYTES:
            return False
        self._shape, self._dtype = array.shape, array.dtype
        return True

    def _separate(self) -> None:
        """Keep the results so far one by one: they no longer share a shape and type."""
        self._results, self.size = [], 0
        for data in self._data:
            place = self._put(np.frombuffer(data, np.uint8), None)
            self._append(True, ("T", name_of_numpy(self._dtype), self._shape, place), len(data) if type(place) is bytes else _ROOM)

    def _append(self, ok: bool, answer: Any, size: int) -> None:
        assert self._results is not None
        self._results.append((ok, answer))
        self.size += _ROOM + size


_ENTRY = 8  # bytes per page in /proc/self/pagemap
# The highest byte of an entry says whether the page is there (0x80), in swap (0x40), and still the file's (0x20).
_CLEAN = bytes(byte for byte in range(256) if not byte & 0xC0 or byte & 0x20)


def open_pagemap(path: str = "/proc/self/pagemap") -> int:
    """A descriptor; -1 if the kernel has no pagemap, or one that does not show writes, with which results would be wrong."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
    tried = Segment.create(2 * PAGE, "rankwise-tried")
    mine = Segment(tried.fd, 2 * PAGE, private=True)
    tried.close()
    mine.view[0] = mine.view[PAGE] + 1  # one page is written to, the other only read
    try:
        tells = is_untouched(fd, mine.address + PAGE, PAGE) and not is_untouched(fd, mine.address, PAGE)
    except OSError:
        tells = False
    if not tells:
        os.close(fd)
    return fd if tells else -1


def is_untouched(pagemap: int, start: int, nbytes: int) -> bool:
    first, last = start // PAGE, (start + nbytes - 1) // PAGE
    size = (last - first + 1) * _ENTRY
    entries = os.pread(pagemap, size, first * _ENTRY)
    return len(entries) == size and not entries[_ENTRY - 1 :: _ENTRY].translate(None, _CLEAN)


_LEAST_BYTES = 64 << 10  # smaller parameters stay where they are
_PIECE = 1 << 30  # bytes that are written at once; the kernel takes less than two of these
_use_count: Any = getattr(torch._C, "_storage_Use_Count", None)
_libc = ctypes.CDLL(None)


def share_weights(built: Any, fd: int, is_program: bool = False) -> None:
    """Make replicas of a model read one copy of its weights, which is in memory, and in the processor's cache, only once. Each builds its
    model by itself. The first copies its large parameters to the file, a file in memory; a replica whose own are the same to the byte
    reads them from there. The file is mapped privately, so what a model writes to its parameters stays with it. On any failure the model
    keeps its own weights."""
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
            storage = parameters[0].untyped_storage()  # also lets go of the storage before
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
    """Large parameters that can move, grouped by the memory they share. Memory stays if anything else refers to it: a view that the model
    has kept would no longer see what is written to the parameter. Memory also stays if torch has not made it (numpy's, a mapped file; a
    program's own may move), or if other processes see it. Buffers stay, because models write to them."""
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
    """How many objects refer to its memory: tensors, and holders of the Python object of its storage, of which there is only one."""
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
