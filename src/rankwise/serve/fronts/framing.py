"""The protocol between the server and its front ends: frames over a socket pair.

A frame is its length, a kind, the number of the request it belongs to, a head of JSON, and raw bytes behind it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from typing import Any, cast

import orjson

from rankwise.protocol import from_raw, to_raw
from rankwise.serve.infer_request import Output

SETUP, DRAIN, RESPONSE, OUTPUTS = range(4)  # to the front end
REQUEST, INFER, CANCEL, HEARTBEAT = range(4, 8)  # to the server
Part = bytes | memoryview
_HEAD = struct.Struct("<QIIB")  # bytes that follow, bytes of JSON, number, kind


class Frames(asyncio.Protocol):
    """Sends and receives frames over one connection; calls `receive` with each that arrives."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrived: list[bytes] = []
        self._has = self._needs = 0
        self._outgoing: list[Part] = []

    def receive(self, kind: int, number: int, head: Any, raw: memoryview) -> None:
        raise NotImplementedError

    def send(self, kind: int, number: int = 0, head: Any = None, raw: Iterable[Part] = ()) -> None:
        """Raises TypeError where the head cannot be written as JSON."""
        text, parts = orjson.dumps(head), list(raw)
        if not self._outgoing:  # all frames of one turn of the event loop are sent in one call
            self._loop.call_soon(self._flush)
        self._outgoing += [_HEAD.pack(len(text) + sum([len(part) for part in parts]), len(text), number, kind), text, *parts]

    def _flush(self) -> None:
        parts, self._outgoing = self._outgoing, []
        if not self._transport.is_closing():
            self._transport.writelines(parts)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._arrived.append(data)
        self._has += len(data)
        if self._has < self._needs:  # of a large frame
            return
        whole = memoryview(b"".join(self._arrived)) if len(self._arrived) > 1 else memoryview(data)
        at, self._needs = 0, _HEAD.size
        while len(whole) - at >= _HEAD.size:
            follow, text, number, kind = _HEAD.unpack_from(whole, at)
            if len(whole) - at < _HEAD.size + follow:
                self._needs = _HEAD.size + follow
                break
            start, at = at + _HEAD.size, at + _HEAD.size + follow
            self.receive(kind, number, orjson.loads(whole[start : start + text]), whole[start + text : at])
        self._arrived, self._has = ([bytes(whole[at:])], len(whole) - at) if at < len(whole) else ([], 0)


def pack(tensors: Iterable[Output]) -> tuple[list[Any], list[Part]]:
    """The layout (names, datatypes, shapes and sizes) and the bytes of each tensor."""
    layout, raws = [], []
    for name, datatype, array in tensors:
        raws.append(raw := to_raw(array, datatype))
        layout.append((name, datatype, array.shape, len(raw)))
    return layout, raws


def unpack(layout: list[Any], raw: memoryview) -> list[Output]:
    tensors, at = [], 0
    for name, datatype, shape, size in layout:
        tensors.append((name, datatype, from_raw(datatype, tuple(shape), raw[at : at + size])))
        at += size
    return tensors
