"""Virtual models, made of others: one of them is drawn by weight and answers, or all answer and their outputs are combined."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from rankwise.errors import RankwiseError
from rankwise.pool.api.ensembles import MERGES, by_weight
from rankwise.protocol import Array, TensorSpec, datatype_of
from rankwise.serve.answering import Answering
from rankwise.serve.errors import ModelFailed, RequestError, Unavailable
from rankwise.serve.infer_request import InferRequest, InferResponse, Output
from rankwise.serve.input_checks import chosen
from rankwise.serve.models_file import VirtualModel

_MERGED_AS = {"FP16", "FP32", "FP64"}  # types whose mean is of the same type


class Virtual(Answering):
    """A virtual model; `find` gives the present model of a NAME or NAME:VERSION."""

    platform, backend = "rankwise_virtual", "rankwise"
    described_by = VirtualModel

    def __init__(self, said: VirtualModel, find: Callable[[str], Answering]) -> None:
        super().__init__(said.name, said.version, lambda text, model: None)  # a failure is noted by the model that fails
        self._said, self._find, self._is_unloaded = said, find, False

    async def load(self, said: Any = None) -> None:
        """Load the models it is made of, if they are not loaded."""
        self._said = said or self._said
        for target in self._targets():
            if target.state != "READY":
                await target.load()
        self._is_unloaded = False

    def unload(self) -> None:
        """Answer no more; the models it is made of stay loaded."""
        self._is_unloaded = True

    # These follow from the models it is made of, and may change with them.

    @property
    def state(self) -> str:  # type: ignore[override]
        if self._is_unloaded:
            return "UNAVAILABLE"
        return next((target.state for target in self._targets() if target.state != "READY"), "READY")

    @property
    def reason(self) -> str:  # type: ignore[override]
        if self._is_unloaded:
            return "unloaded"
        waiting = [target for target in self._targets() if target.state != "READY"]
        return f"model {waiting[0].name!r} is {waiting[0].state}" if waiting else ""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:  # type: ignore[override]
        return self._said.inputs or self._targets()[0].inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:  # type: ignore[override]
        found = self._said.outputs or self._targets()[0].outputs
        is_kept = self._said.outputs or not self._said.combine
        return found if is_kept or (self._said.combine == "mean" and {spec.datatype for spec in found} <= _MERGED_AS) else ()

    def _targets(self) -> list[Answering]:
        """The models that may be asked: all with a weight above 0."""
        return [self._find(name) for name, weight in self._said.targets.items() if weight]

    async def _answer(self, request: InferRequest) -> InferResponse:
        if self._is_unloaded:
            raise Unavailable(f"model {self.name!r} is unloaded")
        if self._said.combine:
            return self.respond(request, chosen(await self._all(request), request.outputs, self.name))
        target = self._find(by_weight(self._said.targets, _key(request)))
        response = await target.infer(request)
        return self.respond(request, response.outputs, served_by=f"{target.name}:{target.version}")

    async def _all(self, request: InferRequest) -> list[Output]:
        """The merged outputs of all models, which run at the same time; where one fails, the requests to the others are cancelled."""
        whole = replace(request, outputs=None)
        tasks = [asyncio.ensure_future(target.infer(whole)) for target in self._targets()]
        try:
            responses = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        try:
            merged = MERGES[self._said.combine]([{name: array for name, _, array in response.outputs} for response in responses])
        except RankwiseError as error:
            raise ModelFailed(f"{error.finding.summary}: {error.finding.why}") from error
        return [self._named(name, np.asarray(array)) for name, array in merged.items()]

    def _named(self, name: str, array: Array) -> Output:
        datatype = datatype_of(array)
        declared = next((spec.datatype for spec in self._said.outputs if spec.name == name), datatype)
        if not datatype or declared != datatype:
            raise ModelFailed(f"output {name!r} of model {self.name!r} is {datatype or array.dtype}, but {declared} is declared")
        return name, datatype, array


def _key(request: InferRequest) -> str | None:
    """The request's parameter `key`: requests with the same key go to the same model."""
    key = request.parameters.get("key")
    if key is not None and type(key) not in (str, int):
        raise RequestError("the parameter key has to be a text or a whole number")
    return None if key is None else str(key)
