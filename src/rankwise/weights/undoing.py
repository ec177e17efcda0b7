"""Puts a model back as it was, when loading fails half-way."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from rankwise.weights.sharing import memory_of, write_into


class Snapshot:
    """What every module of a model holds: its attributes, plain containers in them, and its tensors.

    References cost nothing. `copy_values` keeps the tensors' values as well, for loading that may fail when some are already overwritten.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._containers: dict[int, tuple[Any, Any]] = {}
        self._tensors: dict[int, tuple[torch.Tensor, torch.Tensor, bool]] = {}
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for module in model.modules():
            self._keep(vars(module))

    def copy_values(self) -> None:
        """Keep the values of the tensors that still have the memory they had; those that were moved left theirs as it was."""
        for tensor, data, _ in self._tensors.values():
            if not tensor.is_meta and memory_of(tensor) == memory_of(data):
                self._copies.append((data, data.clone()))

    def restore(self) -> None:
        for container, content in self._containers.values():
            container.clear()
            container.update(content) if isinstance(container, (dict, set)) else container.extend(content)
        with torch.no_grad():
            for tensor, data, requires_grad in self._tensors.values():
                if memory_of(tensor) != memory_of(data):
                    tensor.data = data
                if tensor.requires_grad != requires_grad:
                    tensor.requires_grad_(requires_grad)
            for data, copy in self._copies:
                write_into(data, copy)

    def _keep(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self._tensors.setdefault(id(value), (value, value.data, value.requires_grad))
        elif isinstance(value, (dict, list, set, deque)) and id(value) not in self._containers:
            self._containers[id(value)] = (value, type(value)(value) if type(value) in (list, set, deque) else _plain_copy(value))
            for inside in list(value.values() if isinstance(value, dict) else value):
                self._keep(inside)
        elif isinstance(value, tuple):
            for inside in value:
                self._keep(inside)


def _plain_copy(value: Any) -> Any:
    """The content of a container of any class, as a plain one: its class may want other arguments."""
    return dict(value) if isinstance(value, dict) else list(value)
