"""Models that load in their own way (hooks, overridden methods), and `Snapshot`, which puts a model back if loading fails half-way."""

from __future__ import annotations

import inspect
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from rankwise.weights.matching import Fit, Naming, Rules, Wanted, is_allowed, may_be_missing, namings, pair
from rankwise.weights.parameter_names import notes_by_own_names
from rankwise.weights.sharing import memory_of, same_bits, write_into
from rankwise.weights.state_dicts import StateDict
from rankwise.weights.tensor_records import CheckpointError, is_extra_state
from rankwise.weights.tensors import TensorReader


def loads_in_its_own_way(model: torch.nn.Module) -> bool:
    """Whether state_dict() has other tensors than the model's own, or code of the user takes part in loading."""
    own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    if any(isinstance(value, torch.Tensor) and id(value) not in own for value in state_of(model).values()):
        return True
    if type(model).load_state_dict is not torch.nn.Module.load_state_dict:
        return True
    plain = torch.nn.Module._load_from_state_dict
    return any(
        module._load_state_dict_pre_hooks
        or module._load_state_dict_post_hooks
        or (type(module)._load_from_state_dict is not plain and not type(module).__module__.startswith("torch.nn."))
        for module in model.modules()
    )


_MARK = 113.0  # put into every tensor before a trial: one that still consists of it was given no value


class OwnLoading:
    """Tries what a model's own loading does with names that the model does not have, and undoes it."""

    def __init__(self, model: torch.nn.Module, slots: Mapping[str, Wanted], rules: Rules, reader: TensorReader) -> None:
        self._model, self._slots, self._rules, self._reader = model, slots, rules, reader

    def fit(self, state: StateDict) -> Fit | None:
        """The fit under those names of which the model takes the most; None if under no names all are taken."""
        if any(record.unreadable for record in state.tensors.values()):
            return None
        fits: list[Fit] = []
        for naming in namings(self._slots, state.tensors, self._rules):
            found = None if naming.doubled else self._tried(state, naming)
            if found is not None and found.is_whole and found.handed:
                fits.append(found)
                if found.is_full:
                    break
        return max(fits, key=lambda one: len(one.handed or ()), default=None)

    def _tried(self, state: StateDict, naming: Naming) -> Fit | None:
        values = self._reader.read_all(naming.named, state.tensors)
        notes = notes_by_own_names(naming.named, state.notes)
        snapshot = Snapshot(self._model)
        snapshot.copy_values()
        marked = {name: value for name, value in state_of(self._model).items() if name in self._slots and _may_be_marked(value)}
        try:
            with torch.no_grad():
                for tensor in marked.values():
                    write_into(tensor, torch.full_like(tensor, _MARK))
                said = load_by_own(self._model, values, notes, assign=is_on_meta(self._model))
                kept = [name for name, value in state_of(self._model).items() if name in marked and bool((value == _MARK).all())]
        except Exception:
            return None  # these names are wrong, perhaps for a hook of the user
        finally:
            snapshot.restore()
        if said is None:
            return None  # a model that returns nothing may have taken nothing
        return self._fit_of(state, naming, *said, kept)

    def _fit_of(self, state: StateDict, naming: Naming, missing: list[str], unexpected: list[str], kept: list[str]) -> Fit:
        by_name = pair(self._slots, state.tensors, naming, self._rules)
        missing = [name for name in missing if not is_extra_state(name)]
        known = {*by_name.pairs, *missing}
        missing += [name for name in kept if name not in known]  # filled up from its own state_dict()
        allowed = [name for name in missing if may_be_missing(name, by_name.pairs, self._rules)]
        ignored = tuple(name for name in unexpected if is_allowed(name, naming.named, self._rules))
        handed = {name: theirs for name, theirs in naming.named.items() if name not in ignored}
        return replace(
            by_name,
            pairs={ours: theirs for ours, theirs in by_name.pairs.items() if ours in handed},
            missing=tuple(name for name in missing if name not in allowed),
            unexpected=tuple(naming.named.get(name, name) for name in unexpected if name not in ignored),
            wrong={},
            left_alone=tuple(allowed),
            ignored=ignored,
            handed=handed,
        )


def _may_be_marked(value: Any) -> bool:
    is_usual = type(value) in (torch.Tensor, torch.nn.Parameter) and not value.is_meta and not value.is_inference()
    return is_usual and value.is_floating_point() and value.itemsize > 1 and value.numel() > 0


def load_by_own(
    model: torch.nn.Module, values: Mapping[str, Any], notes: Mapping[str, dict[str, Any]], assign: bool
) -> tuple[list[str], list[str]] | None:
    """Call the model's load_state_dict; returns the names it found missing and unexpected, if it says so. Raises CheckpointError."""
    handed = OrderedDict(values)
    if notes:
        handed._metadata = dict(notes)  # type: ignore[attr-defined]  # where torch keeps it
    options = {"strict": False, **({"assign": True} if assign else {})}
    try:
        result = model.load_state_dict(handed, **_taken(model.load_state_dict, options))
    except RuntimeError as error:
        if not str(error).startswith("Error(s) in loading state_dict"):
            raise
        raise CheckpointError("RW734", "the model's own loading does not take the checkpoint", why=str(error)[:1000]) from error
    if not (isinstance(result, tuple) and len(result) == 2):
        return None
    missing, unexpected = result
    return list(missing), list(unexpected)


def state_of(model: torch.nn.Module) -> dict[str, Any]:
    """The model's state dict; with the model's own tensors, if its class has an option for that."""
    return dict(model.state_dict(**_taken(model.state_dict, {"keep_vars": True})))


def _taken(function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """The options that the function takes: a class of the user's may take fewer than torch passes today."""
    takes = inspect.signature(function).parameters
    has_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in takes.values())
    return {name: value for name, value in options.items() if has_any or name in takes}


def is_on_meta(model: torch.nn.Module) -> bool:
    return any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


class Snapshot:
    """What every module of a model holds: its attributes, the plain containers in them, and its tensors.

    References alone cost nothing. `copy_values` also keeps values, for loading that may fail when some are already overwritten.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._containers: dict[int, tuple[Any, Any]] = {}
        self._tensors: dict[int, tuple[torch.Tensor, torch.Tensor, bool]] = {}
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for module in model.modules():
            self._keep(vars(module))

    has_copies = False

    def copy_values(self) -> None:
        """Keep the values of tensors that still have their memory; a tensor that was moved has left its old memory as it was."""
        self.has_copies = True
        for tensor, data, _ in self._tensors.values():
            if not tensor.is_meta and memory_of(tensor) == memory_of(data):
                self._copies[id(tensor)] = data, data.clone()

    def is_as_before(self, tensor: torch.Tensor) -> bool:
        """Whether this tensor of the model has the value it had when values were copied."""
        if id(tensor) not in self._tensors or tensor.is_meta:
            return False
        old = self._copies.get(id(tensor), self._tensors[id(tensor)])[1]  # a tensor that was moved has left its old memory as it was
        return same_bits(tensor, old.to(tensor))

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
            for data, copy in self._copies.values():
                write_into(data, copy)

    def _keep(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self._tensors.setdefault(id(value), (value, value.data, value.requires_grad))
        elif isinstance(value, (dict, list, set, deque)) and id(value) not in self._containers:
            content = dict(value) if isinstance(value, dict) else list(value)  # of plain types: other classes may want other arguments
            self._containers[id(value)] = (value, content)
            for inside in content.values() if isinstance(content, dict) else content:
                self._keep(inside)
        elif isinstance(value, tuple):
            for inside in value:
                self._keep(inside)
