"""Rows of a batch: joined from several requests, cut again, picked out, and compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rankwise.pool.nested import Uneven, each_leaf, leaves
from rankwise.pool.sameness import PLAIN, bits_of

# How far two ways to compute the same may be apart, as a part of the largest number of a row.
_ROUNDING = {torch.float64: 1e-6, torch.complex128: 1e-6, torch.float32: 1e-3, torch.complex64: 1e-3, torch.float16: 1e-2}
_COARSE = 5e-2  # for bfloat16 and what is coarser still


class Unbatchable(Exception):
    """The rows of a batch cannot be told apart, or depend on each other; its text says why."""


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
            raise Unbatchable("its output has no row for each row of its input")
        return tensor

    try:
        if not has_tensor(output):
            raise Unbatchable("there is no tensor in its output")
        each_tensor(output, check)
        return [each_tensor(output, lambda t: t[start : start + count]) for start, count in zip(starts, rows)]  # noqa: B023  (used at once)
    except Uneven:
        raise Unbatchable("its output is a container that cannot be cut") from None


def take(value: Any, places: list[int]) -> Any:
    """These rows of all tensors, as a copy."""
    return each_tensor(value, lambda tensor: tensor[places])


def each_tensor(value: Any, act: Callable[[torch.Tensor], Any]) -> Any:
    return each_leaf(value, lambda leaf: act(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def has_tensor(value: Any) -> bool:
    return bool(_tensors(value))


def rows_vary(value: Any) -> bool:
    """Whether any row differs from the first one."""
    return any(not torch.equal(tensor, tensor[:1].expand_as(tensor)) for tensor in _tensors(value))


def outline_of(value: Any) -> Any:
    """Types and shapes of one row, with the plain values beside it; None where there is something else, which may mean anything."""
    found = leaves(value)
    if not all(isinstance(leaf, torch.Tensor) or type(leaf) in PLAIN for leaf in found):
        return None
    return tuple([(leaf.dtype, leaf.shape[1:]) if isinstance(leaf, torch.Tensor) else bits_of(leaf) for leaf in found])


def roundings(value: Any) -> list[float]:
    """For each of its tensors: how far two ways to compute it may be apart, as a part of its largest number."""
    return [_ROUNDING.get(tensor.dtype, _COARSE) if _is_rounded(tensor) else 0.0 for tensor in _tensors(value)]


def largest(value: Any) -> list[float]:
    """The largest number of each of its tensors, those that are not finite left out."""
    return [_largest(tensor) if _is_rounded(tensor) else 0.0 for tensor in _tensors(value)]


def gaps(a: Any, b: Any) -> list[float]:
    """How far each two tensors of two outputs are apart; infinite where they are of another shape or type, or differ in what is not
    floating point."""
    return [_gap(one, two) for one, two in zip(_tensors(a), _tensors(b), strict=True)]


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def _is_rounded(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _largest(tensor: torch.Tensor) -> float:
    finite = tensor[tensor.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0


def _gap(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if not _is_rounded(a):
        return 0.0 if torch.equal(a, b) else float("inf")
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.to(wide), b.to(wide)
    finite = a.isfinite()
    if not torch.equal(finite, b.isfinite()) or not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()):
        return float("inf")
    return _largest(a[finite] - b[finite])
