"""What models and virtual models (made of several) have in common: names, state, counts, and perhaps a shadow model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from rankwise.errors import RankwiseError
from rankwise.protocol import TensorSpec
from rankwise.serve.errors import as_request_error
from rankwise.serve.infer_request import InferRequest, InferResponse, Output
from rankwise.serve.models_file import Entry

Note = Callable[[str, str], None]
Batches = dict[int, tuple[int, int]]  # by rows: how often, and nanoseconds


class Tally:
    """Counts and nanoseconds of requests by outcome (success, fail, cache_hit, cache_miss), as the protocol's statistics have them."""

    def __init__(self) -> None:
        self.last_ms = 0
        self._counted: dict[str, tuple[int, int]] = {}

    def add(self, what: str, started_ns: int) -> None:
        count, ns = self.of(what)
        self._counted[what] = count + 1, ns + time.monotonic_ns() - started_ns

    def of(self, what: str) -> tuple[int, int]:
        return self._counted.get(what, (0, 0))


class Answering:
    """One version of one model as clients see it. `note` is told failures that are the model's or the server's fault, not the client's,
    with the model's name. `follow` is told each request and its outputs."""

    platform, backend = "pytorch_module", "pytorch"
    described_by: type = Entry
    key = ""  # its name in the pool, where it has one
    max_batch = 1
    preload = False
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    state, reason = "READY", ""

    def __init__(self, name: str, version: str, note: Note) -> None:
        self.name, self.version, self._note = name, version, note
        self.tally = Tally()
        self.follow: Callable[[InferRequest, list[Output]], None] | None = None

    async def infer(self, request: InferRequest) -> InferResponse:
        """Raises RequestError and nothing else; cancelling it cancels the task."""
        started_ns, outcome = time.monotonic_ns(), "fail"
        try:
            response = await self._answer(request)
            outcome = "success"
        except Exception as error:
            request_error = as_request_error(error, self.name)
            request_error.model = self.name
            if request_error.status >= 429 or isinstance(error, RankwiseError):
                self._note(str(request_error), self.name)
            raise request_error from error
        finally:
            self.tally.add(outcome, started_ns)
            self.tally.last_ms = time.time_ns() // 1_000_000
        if self.follow is not None:
            self.follow(request, response.outputs)
        return response

    async def _answer(self, request: InferRequest) -> InferResponse:
        raise NotImplementedError

    def respond(self, request: InferRequest, outputs: list[Output], **parameters: Any) -> InferResponse:
        return InferResponse(self.name, self.version, request.id, outputs, parameters)

    async def load(self, said: Any = None) -> None:
        """`said`: its new entry in MODELS.toml, of the type `described_by`. Raises Unavailable where it cannot be loaded."""

    def unload(self) -> None: ...

    def discard(self) -> None:
        """Free what it holds, after it was removed from the catalogue."""

    def batches(self, numbers: Mapping[str, Any] | None) -> Batches:
        """How often batches of each size ran, by the pool's counters."""
        return {}
