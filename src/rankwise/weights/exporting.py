"""Writes a model with its weights as a torch.export program (.pt2); compares what a model computes with two checkpoints."""

from __future__ import annotations

import errno
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from rankwise.errors import UsageError
from rankwise.files import check_not_special, sync_folder
from rankwise.weights.building import build_model, evaluating, example_inputs
from rankwise.weights.loading import load_weights
from rankwise.weights.tensor_records import CheckpointError
from rankwise.weights.writing import not_written

_TIMED_S = 0.4  # for each of two calls, which take turns
_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}


@dataclass(frozen=True)
class Exported:
    """The result: how far the outputs are apart, and the milliseconds of one call of the model and of the program."""

    output: str
    nbytes: int
    largest_difference: float
    model_ms: float
    program_ms: float


def export_program(
    model: torch.nn.Module, inputs: tuple[Any, ...], output: Path, *, dynamic_batch: bool, tolerance: float | None
) -> Exported:
    """Write `output` if the program computes what the model computes; with another batch size too, if that is dynamic."""
    evaluating(model)
    temporary = _begun(output, model)
    try:
        with torch.no_grad():
            check_example(model, inputs)
            program = torch.export.export(model, inputs, dynamic_shapes=_dynamic(inputs) if dynamic_batch else None)
            torch.export.save(program, temporary)
            run = torch.export.load(temporary).module()
            trials = [inputs]
            if dynamic_batch:  # with one row more
                trials.append(tuple(torch.cat([tensor, tensor[:1]]) for tensor in inputs))
            apart = max(largest_difference(model(*trial), run(*trial), tolerance) for trial in trials)
            model_ms, program_ms = _timed(lambda: model(*inputs), lambda: run(*inputs))
        os.chmod(temporary, 0o644)
        os.replace(temporary, output)
        sync_folder(output.parent)
    except OSError as error:
        raise not_written(output, error) from error
    except torch._dynamo.exc.TorchDynamoException as error:
        raise UsageError(
            "the model cannot be exported", why=str(error)[:600], next=("see torch.export's limits on Python control flow",)
        ) from error
    finally:
        Path(temporary).unlink(missing_ok=True)
    return Exported(str(output), output.stat().st_size, apart, model_ms, program_ms)


_BESIDE = 1 << 20  # bytes for the program's graph
_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _begun(output: Path, model: torch.nn.Module) -> str:
    """A new file beside the output, on a disk that has room for it: torch would end the whole process if the disk were full."""
    try:
        check_not_special(output)
        handle, temporary = tempfile.mkstemp(dir=output.parent, prefix=f".{output.stem}.", suffix=".pt2")
    except OSError as error:
        raise not_written(output, error) from error
    try:
        os.posix_fallocate(handle, 0, sum(tensor.nbytes for tensor in chain(model.parameters(), model.buffers())) + _BESIDE)
        os.ftruncate(handle, 0)
    except OSError as error:
        if error.errno in _IS_FULL:  # not every file system can reserve room
            Path(temporary).unlink(missing_ok=True)
            raise not_written(output, error) from error
    finally:
        os.close(handle)
    return temporary


def check_example(model: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
    """Raise if the model cannot take the inputs, rather than let torch.export say so in fifty lines."""
    try:
        model(*inputs)
    except Exception as error:
        given = ", ".join(f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)[:80] for value in inputs)
        why = f"{type(error).__name__}: {error}".splitlines()[0][:600]
        raise UsageError(
            f"the model cannot take the example {given}", why=why, next=("give --example the dtypes and sizes that forward takes",)
        ) from error


def _dynamic(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    batch = torch.export.Dim("batch", min=1)
    for tensor in inputs:
        if not isinstance(tensor, torch.Tensor) or tensor.dim() == 0 or tensor.shape[0] < 2:
            raise UsageError(
                "--dynamic-batch wants tensors whose first dimension is at least 2", why="torch.export takes 0 and 1 as constants"
            )
    return tuple({0: batch} for _ in inputs)


def largest_difference(expected: Any, got: Any, tolerance: float | None) -> float:
    """The largest difference of the outputs, relative to their size; raises CheckpointError if it is more than rounding."""
    ours, theirs = tree_leaves(expected), tree_leaves(got)
    if len(ours) != len(theirs):
        raise CheckpointError("RW739", f"the model returns {len(ours)} values, the program {len(theirs)}")
    worst = 0.0
    for one, other in zip(ours, theirs):
        if not isinstance(one, torch.Tensor):
            continue
        allowed = tolerance if tolerance is not None else _TOLERANCES.get(one.dtype, 0.0)
        if one.shape != other.shape or one.dtype != other.dtype:
            raise CheckpointError("RW739", f"the model returns {one.dtype}{list(one.shape)}, the program {other.dtype}{list(other.shape)}")
        wide = torch.complex128 if one.dtype.is_complex else torch.float64
        scale = max(1.0, float(one.to(wide).abs().max())) if one.numel() else 1.0
        apart = float((one.to(wide) - other.to(wide)).abs().max()) / scale if one.numel() else 0.0
        if not apart <= allowed:  # also if it is NaN
            raise CheckpointError("RW739", f"the outputs differ by {apart:.3g} (relative), where {allowed:.3g} is allowed")
        worst = max(worst, apart)
    return worst


def _timed(one: Callable[[], Any], other: Callable[[], Any]) -> tuple[float, float]:
    """Median milliseconds of each call. They take turns, so that both see the same machine."""
    taken: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + 2 * _TIMED_S
    while len(taken[0]) < 3 or time.perf_counter() < end:
        for call, times in zip((one, other), taken):
            started = time.perf_counter()
            call()
            times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(taken[0]), statistics.median(taken[1])


@dataclass(frozen=True)
class Compared:
    """How far the outputs are apart, and the seconds it took to load each file into the model."""

    largest_difference: float
    load_s: float
    converted_load_s: float


def compare_outputs(
    build: str, examples: list[str], path: Path, output: Path, key: str | None, prefix: str | None, tolerance: float | None
) -> Compared:
    """Run the model on the same input with the weights of each file; raises CheckpointError if the outputs differ."""
    inputs = example_inputs(examples)
    results, seconds = [], []
    for file, key_there, prefix_there in ((path, key, prefix), (output, None, None)):
        model = build_model(build)
        started = time.perf_counter()
        load_weights(model, file, key=key_there, prefix=prefix_there, tensors_only=True)
        seconds.append(time.perf_counter() - started)
        with torch.no_grad():
            check_example(model, inputs)
            results.append(model(*inputs))
    return Compared(largest_difference(results[0], results[1], tolerance), *seconds)
