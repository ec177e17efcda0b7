"""A model that is asked what another was asked, after it, for nobody: to see how it would do. It never changes or delays an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from rankwise.protocol import to_raw
from rankwise.serve.answering import Answering
from rankwise.serve.errors import RequestError
from rankwise.serve.messages import LEAST_URGENT, InferRequest, Output

_MOST = 32  # under way at once; more are left out
_LONGEST_S = 60.0


class Shadow:
    """`count` is told what came of each: the same answer, another, none, or that it was left out."""

    def __init__(self, find: Callable[[], Answering], count: Callable[[str], None]) -> None:
        self._find, self._count = find, count
        self._open: set[asyncio.Task[None]] = set()

    def follow(self, request: InferRequest, outputs: list[Output]) -> None:
        if len(self._open) >= _MOST:
            self._count("left out")
            return
        own = replace(request, parameters={"priority": LEAST_URGENT}, remaining_s=_LONGEST_S)
        task = asyncio.get_running_loop().create_task(self._ask(own, outputs))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _ask(self, request: InferRequest, outputs: list[Output]) -> None:
        try:
            found = (await self._find().infer(request)).outputs
        except RequestError:
            self._count("failed")
        else:
            self._count("same" if is_same(found, outputs) else "different")


def is_same(first: list[Output], second: list[Output]) -> bool:
    """To the bit; names and types as well."""
    if [(name, kind, array.shape) for name, kind, array in first] != [(name, kind, array.shape) for name, kind, array in second]:
        return False
    return all(bytes(to_raw(a, kind)) == bytes(to_raw(b, kind)) for (_, kind, a), (_, _, b) in zip(first, second))
