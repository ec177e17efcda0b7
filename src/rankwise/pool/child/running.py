"""Runs a model on what one order brought: one request, or the rows of several at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from rankwise.pool.child.failures import check_poison, failure, is_out_of_memory, release_memory
from rankwise.pool.child.models import Loaded, to_device
from rankwise.pool.child.proving import Prover
from rankwise.pool.child.rows import Unbatchable, cut, each_tensor, join
from rankwise.pool.child.staging import Staging
from rankwise.pool.nested import Uneven, joined
from rankwise.pool.wire import HALVED, UNBATCHABLE

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

    def _batch(self, model: Loaded, requests: list[tuple[Any, ...]], rows: list[int], place: int = 0) -> list[tuple[bool, Any]]:
        """`place` is that of the first of them among all of the order."""
        try:
            whole = requests[0] if len(requests) == 1 else join(requests)
            spare = self._prover.spare(model, whole, sum(rows))
            started = time.monotonic_ns()
            output = self.call(model, whole)
            took_ns = time.monotonic_ns() - started
            parts = cut(output, rows)
            checked = self._prover.check(model, lambda inputs: self.call(model, inputs), whole, spare, output, took_ns)
            return [(True, part) for part in (parts if checked is output else cut(checked, rows))]
        except Unbatchable as error:
            self.flags |= UNBATCHABLE
            self.reason = str(error)
            if len(requests) == 1:  # there was nothing to cut; and its input may not be what it was any more
                return [(True, output)]
        except BaseException as error:
            check_poison(error)
            if is_out_of_memory(error):
                self.flags |= HALVED
                release_memory()
                if len(requests) == 1:
                    return [self._halves(model, self._again(place), rows[0], error)]
                middle = len(requests) // 2
                return [
                    *self._batch(model, requests[:middle], rows[:middle], place),
                    *self._batch(model, requests[middle:], rows[middle:], place + middle),
                ]
            if len(requests) == 1:
                return [(False, failure(error))]
            # One by one, so that a row that fails does not fail its neighbours; a request of several rows is looked at by itself.
            return [self._batch(model, requests[i : i + 1], rows[i : i + 1], place + i)[0] for i in range(len(requests))]
        return [self._alone(model, request) for request in requests]

    def _halves(self, model: Loaded, inputs: tuple[Any, ...], rows: int, error: BaseException) -> tuple[bool, Any]:
        """The rows of one request, on copies: a model that writes to its input may have done so before memory ran out."""
        if rows < 2:
            return False, failure(error)
        outputs = []
        for start, stop in ((0, rows // 2), (rows // 2, rows)):
            half = each_tensor(inputs, lambda t: t[start:stop])  # noqa: B023  (used at once)
            try:
                output = self.call(model, each_tensor(half, torch.Tensor.clone))
                cut(output, [stop - start])
            except Unbatchable as unbatchable:  # what it says of each half does not make one answer
                self.flags |= UNBATCHABLE
                self.reason = str(unbatchable)
                return False, failure(error)
            except BaseException as raised:
                check_poison(raised)
                if not is_out_of_memory(raised):
                    return False, failure(raised)
                release_memory()
                ok, output = self._halves(model, half, stop - start, raised)
                if not ok:
                    return False, output
            outputs.append(output)
        try:
            return True, joined(outputs, lambda leaf: isinstance(leaf, torch.Tensor), torch.cat)
        except (Uneven, RuntimeError):
            self.flags |= UNBATCHABLE
            self.reason = "its outputs for parts of a batch do not make one"
            return False, failure(error)

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
