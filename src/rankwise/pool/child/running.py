"""Runs a model on what one order brought: one request, or the rows of several at once."""

from __future__ import annotations

import errno
import pickle
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import torch

from rankwise.pool.child.models import Loaded, to_device
from rankwise.pool.child.staging import Staging
from rankwise.pool.exceptions import pickled
from rankwise.pool.nested import Uneven, each_leaf, joined
from rankwise.pool.wire import HALVED, UNBATCHABLE

_LONGEST = 20_000  # bytes of an exception, or of its traceback
_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")  # the allocator's words differ from one system to the next


Again = Callable[[int], tuple[Any, ...]]
_NOTHING = object()


class Unbatchable(Exception):
    """The outputs of a batch cannot be told apart by rows."""


class Runner:
    """Gets inputs as tensors, gives outputs as (ok, value) in the same order."""

    def __init__(self) -> None:
        self.flags = 0
        self._again: Again = lambda place: ()
        self._staging = Staging()
        self._proven: dict[int, weakref.ref[Loaded]] = {}  # models whose outputs were seen to have as many rows as their inputs

    def run(self, model: Loaded, requests: list[tuple[Any, ...]], rows: list[int], again: Again) -> list[tuple[bool, Any]]:
        """rows[i] is 0 for a request that stands for itself; otherwise its inputs are cut along the first dimension. `again` brings the
        inputs of the request at this place once more, as they were."""
        self.flags, self._again = 0, again
        return self._batch(model, requests, rows) if rows[0] else [self._alone(model, request) for request in requests]

    def _alone(self, model: Loaded, inputs: tuple[Any, ...]) -> tuple[bool, Any]:
        try:
            return True, self.call(model, inputs)
        except BaseException as error:
            return False, failure(error)

    def _batch(self, model: Loaded, requests: list[tuple[Any, ...]], rows: list[int], place: int = 0) -> list[tuple[bool, Any]]:
        """`place` is that of the first of them among all of the order."""
        try:
            whole = requests[0] if len(requests) == 1 else join(requests)
            sample = self._sample(model, whole, rows)
            output = self.call(model, whole)
            parts = cut(output, rows)
            if sample is not None:
                self._prove(model, sample, output)
            return [(True, part) for part in parts]
        except Unbatchable:
            self.flags |= UNBATCHABLE
            if len(requests) == 1:  # there was nothing to cut; and its input may not be what it was any more
                return [(True, output)]
        except BaseException as error:
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
        return [self._alone(model, request) for request in requests]  # so that a row that fails does not fail its neighbours

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
            except Unbatchable:  # what it says of each half does not make one answer
                self.flags |= UNBATCHABLE
                return False, failure(error)
            except BaseException as raised:
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
            return False, failure(error)

    def _sample(self, model: Loaded, inputs: tuple[Any, ...], rows: list[int]) -> Any:
        """The first time that a model's rows are to be told apart: what it makes of one of them. A single look cannot tell rows from
        an output that happens to be as long. On copies, because the model may write to its input."""
        proven = self._proven.get(id(model))
        if sum(rows) < 2 or (proven is not None and proven() is model):
            return None
        try:
            return self.call(model, each_tensor(inputs, lambda tensor: tensor[:1].clone()))
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return _NOTHING  # a model that takes no single row: what it makes of several is not to be cut

    def _prove(self, model: Loaded, sample: Any, output: Any) -> None:
        """One row gave one, and whatever is no tensor was the same. Raises Unbatchable."""
        if sample is _NOTHING:
            raise Unbatchable
        cut(sample, [1])
        try:
            joined([sample, output], lambda leaf: isinstance(leaf, torch.Tensor), lambda tensors: tensors[0])
        except Uneven:
            raise Unbatchable from None
        self._proven[id(model)] = weakref.ref(model)

    def call(self, model: Loaded, inputs: tuple[Any, ...]) -> Any:
        """The model on its device; what comes back lies in ordinary memory, complete."""
        if model.device.type == "cpu":
            if model.keeps_inputs:
                inputs = each_tensor(inputs, torch.Tensor.clone)
            return model.run(*inputs)
        return self._staging.fetch(model.run(*[to_device(self._staging.pin(item), model.device) for item in inputs]))


def join(requests: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The rows of all requests in one; values that are not tensors are the same in all of them, or they would not be batched."""

    def merge(values: list[Any]) -> Any:
        first = values[0]
        if isinstance(first, torch.Tensor):
            return torch.cat(values)
        if type(first) in (list, tuple):
            return type(first)([merge([value[i] for value in values]) for i in range(len(first))])
        if type(first) is dict:
            return {key: merge([value[key] for value in values]) for key in first}
        return first

    return tuple([merge([request[i] for request in requests]) for i in range(len(requests[0]))])


def cut(output: Any, rows: list[int]) -> list[Any]:
    """A batch's output as one part per request. Raises Unbatchable where it has no rows to cut."""
    total = sum(rows)
    starts = [sum(rows[:i]) for i in range(len(rows))]

    def check(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 0 or tensor.shape[0] != total:
            raise Unbatchable
        return tensor

    try:
        if not has_tensor(output):
            raise Unbatchable
        each_tensor(output, check)
        return [each_tensor(output, lambda t: t[start : start + count]) for start, count in zip(starts, rows)]  # noqa: B023  (used at once)
    except Uneven:
        raise Unbatchable from None


def each_tensor(value: Any, act: Callable[[torch.Tensor], Any]) -> Any:
    return each_leaf(value, lambda leaf: act(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def has_tensor(value: Any) -> bool:
    found: list[bool] = []
    each_tensor(value, lambda tensor: found.append(True))
    return bool(found)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Python's and the GPU's own errors, the kernel's, or the CPU allocator's, which is a plain RuntimeError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


def release_memory() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def failure(error: BaseException, longest: int = _LONGEST) -> tuple[bytes, str]:
    """As `packed_error`; what would end the caller's thread when raised there (SystemExit, KeyboardInterrupt) travels as text only."""
    data, text = packed_error(error, longest)
    return (data if isinstance(error, Exception) else b""), text


def packed_error(error: BaseException, longest: int = _LONGEST) -> tuple[bytes, str]:
    """The exception as the caller will see it, if it can travel, and the worker's traceback in any case."""
    text = "".join(traceback.format_exception(error))
    error.__traceback__ = None
    return pickled(error, longest), text[-longest:]


def shortened(packed: tuple[bytes, str], longest: int) -> tuple[bytes, str]:
    """An exception that leaves room for others in the packet; its text goes on being there, from the end."""
    data, text = packed
    return (data if len(data) <= longest else pickled(pickle.loads(data), longest)), text[-longest:]
