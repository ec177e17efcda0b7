"""What can be done to a batch without knowing what is in it: move it to a device, cut it short, count its samples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch.utils._pytree import tree_map

from rankwise.errors import UsageError


def moved(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on the device."""
    return _mapped(batch, lambda tensor: tensor.to(device, non_blocking=True))


def emptied(batch: Any) -> Any:
    """The batch with no sample left in it, shapes and types kept."""
    return _mapped(batch, lambda tensor: tensor[:0], lambda words: words[:0])


def num_samples_in(batch: Any) -> int:
    """What all tensors in the batch have as their length, as PyTorch's own collation lays it out, and lists of words or numbers too."""
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
    """What collation makes of one word or number per sample."""
    return isinstance(batch, (list, tuple)) and bool(batch) and all(isinstance(item, (str, bytes, int, float)) for item in batch)


def _mapped(batch: Any, change: Callable[[torch.Tensor], torch.Tensor], change_words: Callable[[Any], Any] = lambda words: words) -> Any:
    def changed(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return change(leaf) if leaf.dim() else leaf
        if _is_per_sample(leaf):
            return change_words(leaf)
        if isinstance(leaf, MutableMapping):  # what tokenizers return is no dict, and knows more than its items
            leaf = copy.copy(leaf)
            leaf.update({key: _mapped(value, change, change_words) for key, value in leaf.items()})
        return leaf

    return tree_map(changed, batch, is_leaf=_is_per_sample)
