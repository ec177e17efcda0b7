"""Frames arrive whole and in order, however the socket cuts them up."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import numpy as np
import pytest

pytest.importorskip("httptools", reason="rankwise[serve] is not installed")

from rankwise.serve.fronts.framing import Frames, pack, unpack


class Taking(Frames):
    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tuple[int, int, Any, bytes]] = []

    def receive(self, kind: int, number: int, head: Any, raw: memoryview) -> None:
        self.taken.append((kind, number, head, bytes(raw)))


@pytest.mark.parametrize("size", [1, 7, 1000, 1 << 20])
def test_frames_are_whole_whatever_pieces_they_come_in(size: int) -> None:
    sent = [(kind, number, {"n": number}, bytes([number]) * length) for number, (kind, length) in enumerate([(0, 0), (7, 5), (2, 3000)])]

    async def exchange() -> list[Any]:
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        _, sender = await loop.connect_accepted_socket(Taking, ours)
        for kind, number, head, raw in sent:
            sender.send(kind, number, head, [raw[:10], memoryview(raw)[10:]])
        sender.close()
        theirs.setblocking(False)
        whole = b""
        while part := await loop.sock_recv(theirs, 1 << 20):
            whole += part
        theirs.close()
        receiver = Taking()
        for at in range(0, len(whole), size):
            receiver.data_received(whole[at : at + size])
        return receiver.taken

    assert asyncio.run(exchange()) == sent


def test_tensors_are_the_same_on_the_other_side() -> None:
    words = np.array([[b"a", b""], [b"\0\xff", b"long" * 99]], object)
    tensors = [("x", "FP32", np.float32([[1.5, np.nan], [np.inf, -0.0]])), ("w", "BYTES", words), ("none", "INT64", np.empty((0, 3), "i8"))]
    said, raws = pack(tensors)
    found = unpack(said, memoryview(b"".join(raws)))
    assert [(name, kind, array.shape) for name, kind, array in found] == [(name, kind, array.shape) for name, kind, array in tensors]
    assert found[0][2].tobytes() == tensors[0][2].tobytes() and found[1][2].tolist() == words.tolist()
