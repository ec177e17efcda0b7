"""Fills a model with the tensors that were chosen: all checks first, then one tensor at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import is_lazy

from rankwise.errors import UsageError
from rankwise.weights.choosing import Choice
from rankwise.weights.matching import Slot
from rankwise.weights.names import bare
from rankwise.weights.records import CheckpointError
from rankwise.weights.tensors import TensorReader

_EXTRA = "_extra_state"


class Target:
    """The model that is filled, and the dtype and device it shall have."""

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype | None, device: torch.device | None) -> None:
        self._model, self._dtype, self._device = model, dtype, device
        self._named: dict[str, Any] = model.state_dict(keep_vars=True)
        lazy = [name for name, value in self._named.items() if is_lazy(value)]
        if lazy:
            raise UsageError(
                f"{lazy[0]} has no shape yet", why="lazy modules get theirs in the first forward", next=("call the model once",)
            )

    def slots(self) -> dict[str, Slot]:
        """What wants a value, by name."""
        tensors = {name: value for name, value in self._named.items() if isinstance(value, torch.Tensor)}
        return {name: Slot(tuple(value.shape), _name(value.dtype), id(value)) for name, value in tensors.items()}

    def fill(self, choice: Choice, reader: TensorReader, path: str) -> dict[str, str]:
        """Put every chosen tensor in its place; returns the dtypes that were converted. The model is touched after the last check."""
        for theirs in dict.fromkeys(choice.fit.pairs.values()):
            reader.check(theirs, choice.state.tensors[theirs])
        self._check_tied(choice, reader, path)
        self._check_meta(choice)
        self._extra_states(choice)
        converted = {
            ours: f"{choice.state.tensors[theirs].dtype} → {wanted}"
            for ours, theirs in choice.fit.pairs.items()
            if choice.state.tensors[theirs].dtype != (wanted := _name(self._dtype_of(ours)))
        }
        with torch.no_grad():
            self._put(choice, reader)
        return converted

    def _put(self, choice: Choice, reader: TensorReader) -> None:
        has_meta = any(isinstance(value, torch.Tensor) and value.is_meta for value in self._named.values())
        if not has_meta:
            self._move()
            self._named = self._model.state_dict(keep_vars=True)
        if self._needs_own_loading():
            self._load_state_dict(choice, reader, has_meta)
        else:
            self._fill_in_place(choice, reader)
        if has_meta:
            self._move()

    def _fill_in_place(self, choice: Choice, reader: TensorReader) -> None:
        """One tensor at a time, so that converting needs memory for one only, and two names of one tensor stay so."""
        placed: dict[int, torch.Tensor] = {}
        addresses: set[int] = set()
        for ours, theirs in choice.fit.pairs.items():
            current = self._named[ours]
            if id(current) not in placed:
                tensor = reader.read(theirs, choice.state.tensors[theirs])
                placed[id(current)] = self._on_meta(current, ours, tensor, addresses) if current.is_meta else current.copy_(tensor)
            if current.is_meta:
                self._assign(ours, placed[id(current)])
        for name, value in self._extra_states(choice).items():
            self._model.get_submodule(name[: -len(_EXTRA)].rstrip(".")).set_extra_state(value)

    def _on_meta(self, current: torch.Tensor, ours: str, tensor: torch.Tensor, addresses: set[int]) -> torch.Tensor:
        """The mapped tensor itself, unless another parameter has the same memory: then writing to one would change both."""
        value = tensor.to(device=self._device or "cpu", dtype=self._dtype_of(ours))
        if not value.is_contiguous() or (value.numel() and value.data_ptr() in addresses):
            value = value.clone(memory_format=torch.contiguous_format)
        addresses.add(value.data_ptr())
        return torch.nn.Parameter(value, current.requires_grad) if isinstance(current, torch.nn.Parameter) else value

    def _assign(self, ours: str, value: Any) -> None:
        path, _, last = ours.rpartition(".")
        module = self._model.get_submodule(path)
        (module._parameters if last in module._parameters else module._buffers)[last] = value

    def _load_state_dict(self, choice: Choice, reader: TensorReader, assign: bool) -> None:
        """By the model's own hooks, which know more than names; what they leave without a value is still not passed over."""
        tensors: dict[str, Any] = {ours: reader.read(theirs, choice.state.tensors[theirs]) for ours, theirs in choice.fit.pairs.items()}
        if assign:
            tensors = {ours: tensor.to(self._device or "cpu", self._dtype_of(ours)) for ours, tensor in tensors.items()}
        missing, _ = self._model.load_state_dict({**tensors, **self._extra_states(choice)}, strict=False, assign=assign)
        left = [name for name in missing if name not in choice.fit.left_alone and not name.endswith(_EXTRA)]
        if left:
            raise CheckpointError("RW734", f"the model's own loading left {', '.join(left[:6])} without a value")

    def _needs_own_loading(self) -> bool:
        """Whether state_dict() shows something else than the model's own tensors, or a class of the user's loads in its own way."""
        own = {id(tensor) for tensor in (*self._model.parameters(), *self._model.buffers())}
        if any(isinstance(value, torch.Tensor) and id(value) not in own for value in self._named.values()):
            return True
        plain = torch.nn.Module._load_from_state_dict
        return any(
            module._load_state_dict_pre_hooks
            or module._load_state_dict_post_hooks
            or (type(module)._load_from_state_dict is not plain and not type(module).__module__.startswith("torch.nn."))
            for module in self._model.modules()
        )

    def _move(self) -> None:
        if self._device is not None:
            self._model.to(self._device)
        if self._dtype is not None:
            self._model.to(self._dtype)

    def _dtype_of(self, ours: str) -> torch.dtype:
        own: torch.dtype = self._named[ours].dtype
        return self._dtype if self._dtype is not None and own.is_floating_point else own

    def _extra_states(self, choice: Choice) -> dict[str, Any]:
        """What modules keep beside their tensors, by the model's names."""
        found = {bare(name): value for name, value in choice.state.values.items() if name.endswith(_EXTRA)}
        wanted = [name for name in self._named if name.endswith(_EXTRA)]
        missing = [name for name in wanted if bare(name) not in found and not isinstance(self._named[name], torch.Tensor)]
        if missing:
            raise CheckpointError("RW734", f"{', '.join(missing[:6])} is missing in the checkpoint", why="a module of the model wants it")
        return {name: found[bare(name)] for name in wanted if bare(name) in found}

    def _check_tied(self, choice: Choice, reader: TensorReader, path: str) -> None:
        """One tensor of the model, two different ones in the checkpoint: whichever came last would win."""
        sources: dict[int, tuple[str, str]] = {}
        for ours, theirs in choice.fit.pairs.items():
            first_ours, first = sources.setdefault(id(self._named[ours]), (ours, theirs))
            one, other = choice.state.tensors[first], choice.state.tensors[theirs]
            if first == theirs or one.shares_all_with(other) or torch.equal(reader.read(first, one), reader.read(theirs, other)):
                continue
            raise CheckpointError(
                "RW737",
                f"{first_ours} and {ours} are one tensor in the model and two different ones in {path}",
                why=f"the checkpoint's {first} and {theirs} differ, so the model it was saved from did not tie them",
            )

    def _check_meta(self, choice: Choice) -> None:
        """What is on the meta device and in no checkpoint would be left without a value."""
        kept = {**dict(self._model.named_parameters(remove_duplicate=False)), **dict(self._model.named_buffers(remove_duplicate=False))}
        left = [name for name, tensor in kept.items() if tensor.is_meta and name not in choice.fit.pairs]
        if left:
            raise CheckpointError(
                "RW738",
                f"{', '.join(left[:6])} would stay on the meta device, without a value",
                why="a buffer registered with persistent=False, or a name in allow_missing, is in no checkpoint",
            )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
