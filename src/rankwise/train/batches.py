"""Works on batches of any content: moves them to a device, empties them, counts their samples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from rankwise.errors import UsageError


def moved(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on the device. Other objects with a `to` (a graph, a PackedSequence) move themselves."""

    def move_other(leaf: Any) -> Any:
        return leaf.to(device) if hasattr(leaf, "to") else leaf

    return _mapped(batch, lambda tensor: tensor.to(device, non_blocking=True), change_other=move_other)


def emptied(batch: Any, num_rows: int) -> Any:
    """The batch of `num_rows` samples with none left in it; shapes and types stay."""
    is_cut = False

    def cut(rows: Any) -> Any:
        nonlocal is_cut
        if len(rows) != num_rows:
            raise _not_emptied(f"a {type(rows).__name__} of length {len(rows)} in it", num_rows)
        is_cut = True
        return rows[:0]

    def cut_other(leaf: Any) -> Any:
        if getattr(leaf, "ndim", 0) and not isinstance(leaf, torch.Tensor):
            return cut(leaf)  # an array
        if leaf is not None and not isinstance(leaf, (torch.Tensor, MutableMapping, str, bytes, int, float, complex)):
            raise _not_emptied(f"a {type(leaf).__name__} in it", num_rows)
        return leaf

    rest = _mapped(batch, cut, cut, cut_other)
    if is_cut:
        return rest
    if isinstance(batch, (list, tuple)) and len(batch) == num_rows:
        return batch[:0]  # a plain list of samples
    raise _not_emptied("nothing in it that has rows", num_rows)


def _not_emptied(what: str, num_rows: int) -> UsageError:
    summary = f"this rank has no sample left in the step, and its batch cannot be emptied: there is {what}"
    why = f"only tensors, arrays and lists of words or numbers with one row for each of its {num_rows} samples can be cut to no rows"
    ways = (
        "uneven='pad' (train.Predictions leaves out what is repeated) or 'drop'",
        "step.over(loader), where such a batch counts nothing",
    )
    return UsageError(summary, why=why, next=ways)


def num_samples_in(batch: Any) -> int:
    """The common length of all tensors in the batch, as PyTorch's collation makes them, and of lists of words or numbers."""
    lengths = set(_lengths(batch))
    if len(lengths) == 1:
        return lengths.pop()
    if not lengths and isinstance(batch, (list, tuple)):
        return len(batch)
    found = f"what is in it has the lengths {sorted(lengths)}" if lengths else f"it is a {type(batch).__name__} without tensors and lists"
    step = "step.over(batches, count=lambda batch: len(batch[0])), or what counts in your batches"
    raise UsageError("nobody knows how many samples a batch has", why=found, next=(step,))


def _lengths(batch: Any) -> Iterator[int]:
    if isinstance(batch, torch.Tensor):
        yield from [len(batch)] if batch.dim() else []
    elif _is_per_sample(batch):
        yield len(batch)
    elif isinstance(batch, (Mapping, list, tuple)):
        for value in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _lengths(value)


def _is_per_sample(batch: Any) -> bool:
    """Whether it is what collation makes of one word or number per sample."""
    return isinstance(batch, (list, tuple)) and bool(batch) and all(isinstance(item, (str, bytes, int, float)) for item in batch)


def _mapped(
    batch: Any,
    change: Callable[[torch.Tensor], torch.Tensor],
    change_words: Callable[[Any], Any] = lambda words: words,
    change_other: Callable[[Any], Any] = lambda leaf: leaf,
) -> Any:
    def changed(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return change(leaf) if leaf.dim() else leaf
        if _is_per_sample(leaf):
            return change_words(leaf)
        if isinstance(leaf, MutableMapping):  # tokenizers return a mapping that is not a dict, and has more than its items
            leaf = copy.copy(leaf)
            leaf.update({key: _mapped(value, change, change_words, change_other) for key, value in leaf.items()})
        return change_other(leaf)

    return tree_map(changed, batch, is_leaf=lambda part: _is_per_sample(part) or isinstance(part, PackedSequence))
