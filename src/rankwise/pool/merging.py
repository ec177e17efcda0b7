"""The outputs of several models as one: their mean, or what most of them are for, anywhere in the same nested structure."""

from __future__ import annotations

import functools
from collections.abc import Callable
from numbers import Number
from typing import Any

import numpy as np

from rankwise.errors import UsageError
from rankwise.pool.dtypes import torch_module
from rankwise.pool.nested import Uneven, items_of, like
from rankwise.pool.sameness import is_same

Merge = Callable[[list[Any]], Any]


def mean(outputs: list[Any]) -> Any:
    """Of tensors, arrays and numbers; what is neither (None, a name) has to be the same in all. Floating point keeps its type, whatever it
    is computed in; integers and booleans become floating point."""
    return _merged(outputs, _mean)


def vote(outputs: list[Any]) -> Any:
    """The class most models are for: of labels (integers, booleans, words), or of scores, whose largest counts. Where it is a draw, the
    lowest label."""
    return _merged(outputs, _vote)


MERGES: dict[str, Merge] = {"mean": mean, "vote": vote}


def _merged(outputs: list[Any], merge: Merge) -> Any:
    first = outputs[0]
    if items_of(first) is None:
        return merge(outputs)
    _check_same(outputs, lambda output: type(output) is type(first) and len(output) == len(first))
    if isinstance(first, dict):
        _check_same(outputs, lambda output: is_same(set(output), set(first)))
        columns = [[output[key] for output in outputs] for key in first]
    else:
        columns = [list(column) for column in zip(*outputs)]
    items = [_merged(column, merge) for column in columns]
    try:
        return like(first, items)
    except Uneven:
        raise _do_not_fit(f"a {type(first).__name__} cannot be made with other items in it") from None


def _mean(outputs: list[Any]) -> Any:
    torch, first = torch_module(), outputs[0]
    if torch is not None and isinstance(first, torch.Tensor):
        _check_shapes(outputs)
        dtype = functools.reduce(torch.promote_types, [output.dtype for output in outputs])
        wide = torch.complex128 if dtype.is_complex else torch.float64
        total = sum([output.to(wide) for output in outputs[1:]], start=first.to(wide))
        return (total / len(outputs)).to(dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype())
    if isinstance(first, (np.ndarray, np.generic)) and first.dtype.kind in "biufc":
        _check_shapes(outputs)
        dtype = np.result_type(*[np.asarray(output).dtype for output in outputs])
        total = np.mean(np.stack(outputs), 0, dtype=np.complex128 if dtype.kind == "c" else np.float64)
        return total.astype(dtype) if dtype.kind in "fc" else total
    if all(isinstance(output, Number) for output in outputs):
        return sum(outputs[1:], start=first) / len(outputs)
    _check_same(outputs, lambda output: is_same(output, first))
    return first


def _vote(outputs: list[Any]) -> Any:
    _check_shapes(outputs)
    labels = np.sort(np.stack([_labels(output) for output in outputs]), axis=0)
    votes = np.stack([(labels == own).sum(0) for own in labels])
    winners = np.take_along_axis(labels, votes.argmax(0)[None], 0)[0]  # the first of equals, and they are sorted
    torch = torch_module()
    if torch is not None and isinstance(outputs[0], torch.Tensor):
        return torch.from_numpy(np.asarray(winners))
    return winners if isinstance(outputs[0], np.ndarray) else winners.item()


def _labels(output: Any) -> np.ndarray[Any, Any]:
    torch = torch_module()
    if torch is not None and isinstance(output, torch.Tensor):  # numpy does not know all of its types
        output = (output.argmax(-1) if output.is_floating_point() and output.dim() else output).detach().cpu().numpy()
    array = np.asarray(output)
    if array.dtype.kind == "f" and array.ndim:
        return array.argmax(-1)  # type: ignore[no-any-return]
    if array.dtype.kind not in "biuUS":
        raise UsageError(
            f"there is no vote over {array.dtype}{list(array.shape)}",
            why="a vote is over labels (integers, booleans, words), or over scores, with one for each class in the last dimension",
            next=("give combine= a function of the list of outputs",),
        )
    return array


def _check_shapes(outputs: list[Any]) -> None:
    shapes = [tuple(np.shape(output)) for output in outputs]
    if len(set(shapes)) > 1:
        raise _do_not_fit(f"their shapes are {', '.join(str(list(shape)) for shape in shapes)}")


def _check_same(outputs: list[Any], is_like_first: Callable[[Any], bool]) -> None:
    for output in outputs:
        if not is_like_first(output):
            raise _do_not_fit(f"one gave {repr(outputs[0])[:80]}, another {repr(output)[:80]}")


def _do_not_fit(why: str) -> UsageError:
    return UsageError(
        "the outputs of the ensemble's models cannot be combined", why=why, next=("give combine= a function of the list of outputs",)
    )
