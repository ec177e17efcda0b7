"""Runs a model on what one order brought: one request, or the rows of several at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from rankwise.pool.memory.encoding import Uneven, each_where_possible, joined
from rankwise.pool.memory.requests import failure
from rankwise.pool.transport.connection import HALVED, UNBATCHABLE
from rankwise.pool.workers.child.failures import Poisoned, check_poison, is_out_of_memory, release_memory, run_divided
from rankwise.pool.workers.child.loading import Loaded, to_device
from rankwise.pool.workers.child.row_checks import Prover, Unbatchable, cut, each_tensor, join

Again = Callable[[int], tuple[Any, ...]]


class Runner:
    """Gets inputs as tensors, gives outputs as (ok, value) in the same order."""

    def __init__(self) -> None:
        self.flags = 0
        self.reason = ""  # why a model's rows are not to be batched
        self.on_call: Callable[[], None] = lambda: None
        self.on_wait: Callable[[], None] = lambda: None  # for a card to be done with what it was given
        self._again: Again = lambda place: ()
        self._staging = Staging()
        self._prover = Prover()

    def run(self, model: Loaded, requests: list[tuple[Any, ...]], rows: list[int], again: Again) -> list[tuple[bool, Any]]:
        """rows[i] is 0 for a request that stands for itself; otherwise its inputs are cut along the first dimension. `again` brings the
        inputs of the request at this place once more, as they were."""
        self.flags, self._again = 0, again
        return self._batch(model, requests, rows) if rows[0] else [self._alone(model, request) for request in requests]

    def _alone(self, model: Loaded, inputs: tuple[Any, ...]) -> tuple[bool, Any]:
        try:
            return True, self.call(model, inputs)
        except BaseException as error:
            check_poison(error)
            return False, failure(error)

    def _batch(self, model: Loaded, requests: list[tuple[Any, ...]], rows: list[int]) -> list[tuple[bool, Any]]:
        """The rows of all requests at once. Where memory runs out, both halves of the requests; where a row fails, each request by
        itself, so that it does not fail its neighbours."""
        results: list[tuple[bool, Any]] = [(False, None)] * len(requests)

        def run(start: int, stop: int) -> None:
            results[start:stop] = self._at_once(model, requests[start:stop], rows[start:stop])

        def judge(error: BaseException, start: int, stop: int) -> int:
            check_poison(error)
            if is_out_of_memory(error):
                self.flags |= HALVED
                release_memory()
                if stop - start > 1:
                    return 2
                results[start] = self._halves(model, self._again(start), rows[start], error)
            elif stop - start > 1:
                return stop - start
            else:
                results[start] = False, failure(error)
            return 0

        run_divided(run, judge, 0, len(requests))
        return results

    def _at_once(self, model: Loaded, requests: list[tuple[Any, ...]], rows: list[int]) -> list[tuple[bool, Any]]:
        whole = requests[0] if len(requests) == 1 else join(requests)
        spare = self._prover.spare(model, whole, sum(rows))
        started = time.monotonic_ns()
        output = self.call(model, whole)
        took_ns = time.monotonic_ns() - started
        try:
            parts = cut(output, rows)
            checked = self._prover.check(model, lambda inputs: self.call(model, inputs), whole, spare, output, took_ns)
            return [(True, part) for part in (parts if checked is output else cut(checked, rows))]
        except Unbatchable as error:
            self._not_batchable(str(error))
        if len(requests) == 1:  # there was nothing to cut; and its input may not be what it was any more
            return [(True, output)]
        return [self._alone(model, request) for request in requests]

    def _halves(self, model: Loaded, inputs: tuple[Any, ...], rows: int, error: BaseException) -> tuple[bool, Any]:
        """The rows of one request, on copies: a model that writes to its input may have done so before memory ran out."""
        outputs: list[Any] = []

        def run(start: int, stop: int) -> None:
            if stop - start == rows:  # that is what memory ran out for
                raise error
            output = self.call(model, each_tensor(inputs, lambda tensor: tensor[start:stop].clone()))
            cut(output, [stop - start])
            outputs.append(output)

        def judge(raised: BaseException, start: int, stop: int) -> int:
            check_poison(raised)
            if stop - start < 2 or not is_out_of_memory(raised):
                raise raised
            release_memory()
            return 2

        try:
            run_divided(run, judge, 0, rows)
        except Poisoned:
            raise
        except Unbatchable as unbatchable:  # the answers for parts of a request do not make one answer
            self._not_batchable(str(unbatchable))
            return False, failure(error)
        except BaseException as raised:
            return False, failure(raised)
        try:
            return True, joined(outputs, lambda leaf: isinstance(leaf, torch.Tensor), torch.cat)
        except (Uneven, RuntimeError):
            self._not_batchable("its outputs for parts of a batch do not make one")
            return False, failure(error)

    def _not_batchable(self, reason: str) -> None:
        self.flags |= UNBATCHABLE
        self.reason = reason

    def call(self, model: Loaded, inputs: tuple[Any, ...]) -> Any:
        """The model on its device; what comes back lies in ordinary memory, complete."""
        self.on_call()
        if model.device.type == "cpu":
            if model.keeps_inputs:
                inputs = each_tensor(inputs, torch.Tensor.clone)
            return model.run(*inputs)
        output = model.run(*[to_device(self._staging.pin(item), model.device) for item in inputs])
        self.on_wait()
        return self._staging.fetch(output)


_LEAST_BYTES = 64 << 10  # below, pinning costs more than it saves


class Staging:
    """Reuses torch's own cache of pinned blocks; what is fetched is complete when `fetch` returns."""

    def pin(self, value: Any) -> Any:
        return each_where_possible(value, _pinned) if torch.cuda.is_available() else value

    def fetch(self, value: Any) -> Any:
        fetched = each_where_possible(value, _fetched)
        torch.cuda.synchronize()
        return fetched


def _pinned(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.nbytes < _LEAST_BYTES:
        return value
    return torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(value)


def _fetched(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
        return value
    block = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.nbytes >= _LEAST_BYTES)
    return block.copy_(value, non_blocking=True)
