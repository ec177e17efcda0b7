"""Runs a model on the requests of one order: one request, or the rows of several as a batch; in smaller parts where memory runs out."""

from __future__ import annotations

import copy
import errno
import gc
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

from rankwise import errors
from rankwise.errors import text_of_error
from rankwise.pool.memory.encoding import Uneven, each_leaf, each_where_possible, joined, leaves
from rankwise.pool.memory.exceptions import failure
from rankwise.pool.transport.connection import HALVED, UNBATCHABLE
from rankwise.pool.workers.model_building import BuiltModel, release_gpu_memory, to_device

Again = Callable[[int], tuple[Any, ...]]
Call = Callable[[tuple[Any, ...]], Any]


class Runner:
    """Runs a model on inputs that are tensors; returns (ok, value) for each, in the same order."""

    def __init__(self, row_checks: Any, held_bytes: Callable[[], int] | None = None) -> None:
        self.flags = 0
        self._held_bytes = held_bytes  # GPU memory that the loaded models take; None if this process cannot be replaced
        self.reason = ""  # why a model's rows must not be batched
        self.on_call: Callable[[], None] = lambda: None
        self.on_wait: Callable[[], None] = lambda: None  # called before waiting for a GPU
        self._again: Again = lambda place: ()
        self._row_checks = row_checks  # a RowChecker, which checks now and then whether the rows of a batch are independent

    def run(self, model: BuiltModel, requests: list[tuple[Any, ...]], rows: list[int], again: Again) -> list[tuple[bool, Any]]:
        """rows[i] is the number of rows of a request, or 0 if it runs by itself. `again(i)` gives the inputs of that request once more, as
        they were sent."""
        self.flags, self._again = 0, again
        return self._batch(model, requests, rows) if rows[0] else self._one_by_one(model, requests)

    def _one_by_one(self, model: BuiltModel, requests: list[tuple[Any, ...]]) -> list[tuple[bool, Any]]:
        results = [self._alone(model, request) for request in requests[:1]]
        for request in requests[1:]:
            results[-1] = own(results[-1])
            results.append(self._alone(model, request))
        return results

    def _alone(self, model: BuiltModel, inputs: tuple[Any, ...]) -> tuple[bool, Any]:
        try:
            return True, self.call(model, inputs)
        except BaseException as error:
            self.check_gpu(error)
            return False, failure(error)

    def check_gpu(self, error: BaseException) -> None:
        """Raise GpuUnusable if nothing runs on the GPU any more, or if its memory ran out and models have leaked much of it: only a fresh
        process gives that back."""
        check_gpu_usable(error)
        if self._held_bytes and is_out_of_memory(error) and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            for found in _chain(error):
                traceback.clear_frames(found.__traceback__)  # what the call itself held is not a leak
            gc.collect()
            if torch.cuda.memory_allocated() - self._held_bytes() > torch.cuda.mem_get_info()[1] * _LEAKED:
                raise GpuUnusable(failure(error))

    def _batch(self, model: BuiltModel, requests: list[tuple[Any, ...]], rows: list[int]) -> list[tuple[bool, Any]]:
        """Run the rows of all requests at once. If memory runs out, run each half of the requests; if a row fails, run each request by
        itself, so that it does not fail its neighbours."""
        results: list[tuple[bool, Any]] = [(False, None)] * len(requests)

        def run(start: int, stop: int) -> None:
            found = self._at_once(model, requests[start:stop], rows[start:stop])
            results[start:stop] = found if stop == len(requests) else own(found)

        def judge(error: BaseException, start: int, stop: int) -> int:
            self.check_gpu(error)
            if is_out_of_memory(error):
                self.flags |= HALVED
                release_gpu_memory()
                if stop - start > 1:
                    return 2
                results[start] = self._halves(model, self._again(start), rows[start], failure(error))
            elif stop - start > 1:
                return stop - start
            else:
                results[start] = False, failure(error)
            return 0

        run_divided(run, judge, 0, len(requests))
        return results

    def _at_once(self, model: BuiltModel, requests: list[tuple[Any, ...]], rows: list[int]) -> list[tuple[bool, Any]]:
        whole = requests[0] if len(requests) == 1 else join(requests)
        inputs_copy = self._row_checks.copy_inputs(model, whole, sum(rows))
        started = time.monotonic_ns()
        output = self.call(model, whole)
        took_ns = time.monotonic_ns() - started
        try:
            parts = cut(output, rows)
            if inputs_copy is not None:  # the check runs the model again
                output = own(output)
            checked = self._row_checks.check(model, lambda inputs: self.call(model, inputs), whole, inputs_copy, output, took_ns)
            return [(True, part) for part in (parts if inputs_copy is None else cut(checked, rows))]
        except Unbatchable as error:
            self._not_batchable(str(error))
        if len(requests) == 1:  # nothing had to be cut, and the model may have changed its input by now
            return [(True, output)]
        return self._one_by_one(model, requests)

    def _halves(self, model: BuiltModel, inputs: tuple[Any, ...], rows: int, failed: tuple[bytes, str]) -> tuple[bool, Any]:
        """Run the rows of one request, fewer and fewer at once, on copies: a model that writes to its input may have done so before memory
        ran out."""
        size = rows
        while size > 1:
            size = -(-size // 2)
            release_gpu_memory()
            try:
                outputs = [self._part(model, inputs, start, min(size, rows - start)) for start in range(0, rows, size)]
                return True, joined(outputs, lambda leaf: isinstance(leaf, torch.Tensor), torch.cat)
            except (Unbatchable, Uneven) as error:  # the answers for parts of a request do not make one answer
                self._not_batchable(str(error) or "its outputs for parts of a batch do not make one")
                return False, failed
            except BaseException as error:
                self.check_gpu(error)
                if not is_out_of_memory(error):
                    return False, failure(error)
        return False, failed

    def _part(self, model: BuiltModel, inputs: tuple[Any, ...], start: int, rows: int) -> Any:
        output = self.call(model, own(inputs, slice(start, start + rows)))
        cut(output, [rows])
        return own(output)

    def _not_batchable(self, reason: str) -> None:
        self.flags |= UNBATCHABLE
        self.reason = reason

    def call(self, model: BuiltModel, inputs: tuple[Any, ...]) -> Any:
        """Run the model on its device. The output lies in ordinary memory, complete."""
        self.on_call()
        if model.device.type == "cpu":
            if model.keeps_inputs:
                inputs = each_tensor(inputs, torch.Tensor.clone)
            return model.run(*inputs)
        if torch.cuda.is_available():
            inputs = tuple([each_where_possible(item, _pinned) for item in inputs])
        output = model.run(*[to_device(item, model.device) for item in inputs])
        self.on_wait()
        fetched = each_where_possible(output, _fetched)
        torch.cuda.synchronize()
        return fetched


_LEAST_BYTES = 64 << 10  # below, pinning costs more than it saves


def _pinned(value: Any) -> Any:
    """The value in pinned memory, which torch keeps for reuse."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.nbytes < _LEAST_BYTES:
        return value
    return torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(value)


def _fetched(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
        return value
    if value.layout is not torch.strided:  # sparse
        return value.cpu()
    block = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.nbytes >= _LEAST_BYTES)
    return block.copy_(value, non_blocking=True)


class Unbatchable(Exception):
    """The rows of a batch cannot be told apart, or depend on each other; its text says why."""


def join(requests: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The rows of all requests as one input; values that are not tensors are the same in all of them, or they would not be batched."""

    def merge(values: list[Any]) -> Any:
        first = values[0]
        if isinstance(first, torch.Tensor):
            return torch.cat(values)
        if type(first) in (list, tuple):
            return type(first)([merge(list(column)) for column in zip(*values)])
        if type(first) is dict:
            return {key: merge([value[key] for value in values]) for key in first}
        return own(first)

    return tuple([merge(list(column)) for column in zip(*requests)])


def cut(output: Any, rows: list[int]) -> list[Any]:
    """A batch's output as one part per request. Raises Unbatchable if it has no rows to cut."""
    total = sum(rows)
    starts = [sum(rows[:i]) for i in range(len(rows))]

    def check(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 0 or tensor.shape[0] != total:
            raise Unbatchable("its output has no row for each row of its input")
        return tensor

    try:
        if not any(isinstance(leaf, torch.Tensor) for leaf in leaves(output)):
            raise Unbatchable("there is no tensor in its output")
        each_tensor(output, check)
        return [each_tensor(output, lambda t: t[start : start + count]) for start, count in zip(starts, rows)]  # noqa: B023  (used at once)
    except Uneven:
        raise Unbatchable("its output is a container that cannot be cut") from None
    except NotImplementedError:  # sparse
        raise Unbatchable("its output is a tensor of a kind that torch cannot cut into rows") from None


def each_tensor(value: Any, act: Callable[[torch.Tensor], Any]) -> Any:
    return each_leaf(value, lambda leaf: act(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def own(value: Any, rows: Any = slice(None)) -> Any:
    """A copy of a value, with these rows of its tensors. Of an input that the model may write to and that is needed again; of an output
    that is still needed when the model runs again, which may write its next output to the same memory."""

    def copied(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.clone() if rows == slice(None) or not leaf.dim() else leaf[rows].clone()
        try:
            return copy.deepcopy(leaf)  # numbers and texts stay the same object
        except Exception:  # its class cannot be copied
            return leaf

    return each_where_possible(value, copied)


# After these errors a process can do nothing on the GPU any more: numbers and words of CUDA, and words of HIP.
_STICKY_CODES = frozenset((214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999))
_STICKY = (
    *("device-side assert", "illegal memory access", "unspecified launch failure", "misaligned address", "illegal instruction"),
    *("hardware stack error", "invalid program counter", "operation not supported on global/shared address space", "launch timed out"),
    *("uncorrectable ecc", "uncorrectable nvlink", "context is destroyed", "cuda error: unknown error", "tensor memory"),
)
_ACCELERATOR_ERROR: type[BaseException] = getattr(torch, "AcceleratorError", RuntimeError)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out; torch's own error counts, whatever its message says."""
    return isinstance(error, torch.OutOfMemoryError) or errors.is_out_of_memory(error)


# The words of Python and of the system's loader, which has no error number for a library that finds no memory to be mapped into.
_RAN_OUT = ("Too many open files", "can't start new thread", "failed to map segment from shared object", ": Cannot allocate memory")


def ran_out(error: BaseException | None) -> bool:
    """Whether memory, files or threads ran out: a fresh process may succeed with the same."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.EAGAIN):
        return True
    is_said = isinstance(error, (ImportError, OSError, RuntimeError)) and any(words in text_of_error(error) for words in _RAN_OUT)
    return is_said or is_out_of_memory(error)


_LEAKED = 0.1  # this part of the GPU's memory


class GpuUnusable(BaseException):
    """After this error nothing more runs on the GPU in this process."""

    def __init__(self, packed: tuple[bytes, str]) -> None:
        super().__init__(packed[1])
        self.packed = packed  # the error in the form in which it is sent


def check_gpu_usable(error: BaseException) -> None:
    """Raise GpuUnusable if this error, or one that it came from, leaves the GPU unusable, or if the GPU fails when it is asked."""
    if isinstance(error, GpuUnusable):
        raise error
    if is_out_of_memory(error):
        return
    if any(_is_sticky(found) for found in _chain(error)) or not _gpu_answers():
        raise GpuUnusable(failure(error))


def _is_sticky(error: BaseException) -> bool:
    if getattr(error, "error_code", None) in _STICKY_CODES and isinstance(error, _ACCELERATOR_ERROR):
        return True
    text = text_of_error(error).lower() if isinstance(error, RuntimeError) else ""
    return any(kind in text for kind in ("cuda", "hip", "accelerator")) and any(words in text for words in _STICKY)


def _chain(error: BaseException | None) -> list[BaseException]:
    seen: list[BaseException] = []
    while error is not None and not any(error is known for known in seen):
        seen.append(error)
        error = error.__cause__ or error.__context__
    return seen


def _gpu_answers() -> bool:
    """Ask the GPU itself, because a model may have caught the GPU's error and raised another one."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    try:
        torch.cuda.synchronize()
    except Exception as error:
        return is_out_of_memory(error)
    return True


def run_divided(run: Callable[[int, int], None], judge: Callable[[BaseException, int, int], int], start: int, stop: int) -> None:
    """Run items `start` to `stop` at once; if that fails, in as many parts as `judge` says (0: the failure is final)."""
    try:
        run(start, stop)
        return
    except BaseException as error:
        parts = judge(error, start, stop)
    size = stop - start
    for i in range(parts):
        run_divided(run, judge, start + i * size // parts, start + (i + 1) * size // parts)
