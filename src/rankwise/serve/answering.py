"""What models and virtual models (made of several) have in common: name, state, counts, and a shadow model if there is one."""

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
Batches = dict[int, tuple[int, int]]  # number of rows: how many such batches ran, and their nanoseconds


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
    """One version of one model as clients see it.

    `note` is called with each failure that is the model's or the server's fault, and the model's name; `follow` with each request and its
    outputs.
    """

    platform, backend = "pytorch_module", "pytorch"
    described_by: type = Entry
    key = ""  # the model's name in the pool, if it is one of the pool's
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
        """The answer to a request. Raises only RequestError; cancelling the call cancels the task in the pool."""
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
        """Load the model, from its new entry in MODELS.toml if `said` is one. Raises Unavailable where it cannot be loaded."""

    def unload(self) -> None: ...

    def discard(self) -> None:
        """Free what it holds, after it was removed from the catalogue."""

    def batches(self, numbers: Mapping[str, Any] | None) -> Batches:
        """How many batches of each size ran and for how long, from the pool's counters."""
        return {}
