"""Fills a model with the chosen tensors: all checks first, then one tensor at a time."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from rankwise.errors import RankwiseError, UsageError
from rankwise.weights.choosing import Choice
from rankwise.weights.matching import Rules, Wanted, below, may_be_missing
from rankwise.weights.own_loading import Snapshot, is_on_meta, load_by_own, loads_in_its_own_way, state_of
from rankwise.weights.parameter_names import bare, notes_by_own_names
from rankwise.weights.sharing import check_overlaps, memory_of, same_bits
from rankwise.weights.tensor_records import EXTRA_STATE, CheckpointError, TensorRecord, Unbuilt, is_extra_state
from rankwise.weights.tensors import TensorReader, check_range

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


class Target:
    """The model that is filled, and the dtype and device that it should get."""

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype | None, device: torch.device | None) -> None:
        self._model, self._dtype, self._device = model, dtype, device
        self._named = state_of(model)
        self._written: list[str] = []  # names whose old values were overwritten without a copy
        self.loads_in_its_own_way = loads_in_its_own_way(model)
        if sharded := next((name for name, value in self._named.items() if type(value).__name__ == "DTensor"), None):
            why = "the model is split over ranks already; a rank fills a plain one"
            raise UsageError(f"{sharded} is a DTensor", why=why, next=("load_weights before fully_shard or parallelize_module",))
        lazy = [name for name, value in self._named.items() if is_lazy(value)]
        if lazy:
            raise UsageError(
                f"{lazy[0]} has no shape yet", why="lazy modules get theirs in the first forward", next=("call the model once",)
            )

    @property
    def has_extra_state(self) -> bool:
        return any(map(is_extra_state, self._named))

    def slots(self) -> dict[str, Wanted]:
        """The model's tensors that want a value, by name."""
        return {name: Wanted(tuple(value.shape), _name(value.dtype), memory_of(value)) for name, value in self._tensors().items()}

    def fill(self, choice: Choice, reader: TensorReader, path: str, rules: Rules) -> dict[str, str]:
        """Put every chosen tensor in its place; returns the dtypes that were converted. If it fails, the model is put back as it was."""
        extra = extra_states(choice, self._named, reader, rules)
        self._check(choice, reader, path)
        converted = {
            ours: f"{choice.state.tensors[theirs].dtype} → {wanted}"
            for ours, theirs in choice.fit.pairs.items()
            if choice.state.tensors[theirs].dtype != (wanted := _name(self._dtype_of(ours)))
        }
        snapshot = Snapshot(self._model)
        try:
            with torch.no_grad():
                self._put(choice, reader, extra, snapshot)
        except BaseException as error:
            snapshot.restore()
            if self._written:
                done = f"{len(self._written)} of {len(choice.fit.pairs)} names"
                if isinstance(error, RankwiseError):
                    why = f"{error.finding.why or error.finding.summary}; {done} have the checkpoint's values already"
                    steps = ("load it again before the model is used",)
                    raise CheckpointError("RW732", f"{path} could not be read to its end", why=why, next=steps) from error
                error.add_note(f"{done} of the model have the checkpoint's values, the others have not")
            elif not isinstance(error, CheckpointError):
                error.add_note("nothing in the model was changed")
            raise
        return converted

    def _check(self, choice: Choice, reader: TensorReader, path: str) -> None:
        pairs, tensors = choice.fit.pairs, choice.state.tensors
        for theirs in dict.fromkeys([*pairs.values(), *(choice.fit.handed or {}).values()]):
            reader.check(theirs, tensors[theirs])
        self._check_tied(choice, reader, path)
        ours = {name: value for name, value in self._tensors().items() if name in pairs}
        check_overlaps(ours, lambda name: reader.read(pairs[name], tensors[pairs[name]]), path)
        for name, theirs in pairs.items():
            if tensors[theirs].dtype != _name(self._dtype_of(name)):
                check_range(name, reader.read(theirs, tensors[theirs], is_lent=True), self._dtype_of(name))
        reader.check_same()

    def _put(self, choice: Choice, reader: TensorReader, extra: dict[str, Any], snapshot: Snapshot) -> None:
        has_meta = is_on_meta(self._model)
        if not has_meta:
            self._move()
            self._named = state_of(self._model)
        if has_meta or self.loads_in_its_own_way or extra or not all(_is_plain(value) for value in self._tensors().values()):
            snapshot.copy_values()  # the model's own code may fail from here on, when half is done
        if self.loads_in_its_own_way:
            self._load_state_dict(choice, reader, extra, has_meta, snapshot)
        else:
            self._fill_in_place(choice, reader, snapshot)
            for name, value in extra.items():
                self._model.get_submodule(name[: -len(EXTRA_STATE)].rstrip(".")).set_extra_state(value)
        if has_meta:
            self._check_none_on_meta()
            self._move()

    def _fill_in_place(self, choice: Choice, reader: TensorReader, snapshot: Snapshot) -> None:
        """Fill one tensor at a time: converting needs memory for one only, and two names of one tensor stay one tensor."""
        placed: dict[Any, torch.Tensor] = {}
        for ours, theirs in choice.fit.pairs.items():
            current = self._named[ours]
            memory = memory_of(current)
            if memory not in placed:
                record = choice.state.tensors[theirs]
                if current.is_meta:
                    placed[memory] = self._on_meta(current, ours, reader, theirs, record)
                else:
                    if not snapshot.has_copies:
                        self._written.append(ours)
                    reader.read_into(current, theirs, record)
                    placed[memory] = current
            if current.is_meta:
                self._assign(ours, placed[memory])
        for ours in choice.fit.left_alone:
            if self._named[ours].is_meta:  # a counter of batches begins at 0
                self._assign(ours, torch.zeros_like(self._named[ours], device=self._device or "cpu"))

    def _on_meta(self, current: torch.Tensor, ours: str, reader: TensorReader, theirs: str, record: TensorRecord) -> torch.Tensor:
        device, dtype = self._device or torch.device("cpu"), self._dtype_of(ours)
        is_copied = device.type != "cpu" or record.dtype != _name(dtype)
        value = reader.read(theirs, record, is_lent=is_copied).to(device=device, dtype=dtype).contiguous().reshape(current.shape)
        return torch.nn.Parameter(value, current.requires_grad) if isinstance(current, torch.nn.Parameter) else value

    def _assign(self, ours: str, value: Any) -> None:
        path, _, last = ours.rpartition(".")
        module = self._model.get_submodule(path)
        (module._parameters if last in module._parameters else module._buffers)[last] = value

    def _load_state_dict(self, choice: Choice, reader: TensorReader, extra: dict[str, Any], assign: bool, before: Snapshot) -> None:
        """Load by the model's own hooks, which may know more than names. A tensor that they leave without a value is still an error."""
        handed = choice.fit.pairs if choice.fit.handed is None else choice.fit.handed
        values: dict[str, Any] = dict(reader.read_all(handed, choice.state.tensors))
        for name in values:
            if assign and name in self._named:
                values[name] = values[name].to(self._device or "cpu", self._dtype_of(name))
        said = load_by_own(self._model, {**values, **extra}, notes_by_own_names(handed, choice.state.notes), assign)
        missing, unexpected = said or ([], [])
        left = [name for name in missing if name not in choice.fit.left_alone and not is_extra_state(name)]
        left += self._not_taken(choice, unexpected) + self._passed_over(choice, values, before)
        if left:
            names = ", ".join(list(dict.fromkeys(left))[:6])
            steps = ("have the model's load_state_dict(), or the hook that leaves them out, take them",)
            raise CheckpointError("RW734", f"the model's own loading left {names} without a value", next=steps)
        self._check_own(choice, values)

    def _not_taken(self, choice: Choice, unexpected: list[str]) -> list[str]:
        """Names in state_dict() that load_state_dict() does not take (quantized weights); second names of a tensor do not count."""
        taken = {memory_of(self._named[name]) for name in choice.fit.pairs if name not in unexpected}
        return [name for name in unexpected if name in choice.fit.pairs and memory_of(self._named[name]) not in taken]

    def _passed_over(self, choice: Choice, values: dict[str, Any], before: Snapshot) -> list[str]:
        """Tensors that are as before, though the checkpoint has another value: a class may not say what its load_state_dict() took."""
        own = ((name, self._named[name]) for name in choice.fit.pairs)
        kept = {name: value for name, value in own if type(value) in _PLAIN_TYPES and before.is_as_before(value)}
        return [name for name, value in kept.items() if not same_bits(value, values[name].to(value).reshape(value.shape))]

    def _check_own(self, choice: Choice, handed: dict[str, Any]) -> None:
        """Raise if the model's own loading made values that are not finite, though all numbers of the checkpoint are."""
        named = {**state_of(self._model), **dict(self._model.named_buffers())}
        infinite = [name for name, value in named.items() if name not in choice.fit.pairs and not _is_finite(value)]
        if infinite and all(_is_finite(value) for value in handed.values()):
            summary = f"{', '.join(infinite[:6])} is not finite after the model's own loading, all numbers of the checkpoint are"
            raise CheckpointError("RW734", summary)

    def _check_none_on_meta(self) -> None:
        left = [name for name, tensor in chain(self._model.named_parameters(), self._model.named_buffers()) if tensor.is_meta]
        if left:
            summary = f"{', '.join(left[:6])} would stay on the meta device, without a value"
            why = "a buffer registered with persistent=False, or a name in allow_missing, is in no checkpoint"
            raise CheckpointError("RW738", summary, why=why)

    def _move(self) -> None:
        if self._device is not None:
            self._model.to(self._device)
        if self._dtype is not None:
            self._model.to(self._dtype)

    def _dtype_of(self, ours: str) -> torch.dtype:
        own: torch.dtype = self._named[ours].dtype
        return self._dtype if self._dtype is not None and own.is_floating_point else own

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {name: value for name, value in self._named.items() if isinstance(value, torch.Tensor) and not is_extra_state(name)}

    def _check_tied(self, choice: Choice, reader: TensorReader, path: str) -> None:
        """Raise if two names are one tensor in the model and differ in the checkpoint: whichever came last would win."""
        sources: dict[Any, tuple[str, str]] = {}
        for ours, theirs in choice.fit.pairs.items():
            first_ours, first = sources.setdefault(memory_of(self._named[ours]), (ours, theirs))
            one, other = choice.state.tensors[first], choice.state.tensors[theirs]
            if first == theirs or one.shares_all_with(other):
                continue
            dtype = self._dtype_of(ours)
            if same_bits(reader.read(first, one).to(dtype), reader.read(theirs, other).to(dtype)):
                continue
            raise CheckpointError(
                "RW737",
                f"{first_ours} and {ours} are one tensor in the model and two different ones in {path}",
                why=f"the checkpoint's {first} and {theirs} differ, so the model it was saved from did not tie them",
            )


def _is_finite(tensor: Any) -> bool:
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or tensor.is_meta:
        return True
    wide = tensor.float() if tensor.itemsize == 1 else tensor  # torch cannot tell this of a float8
    return bool(wide.isfinite().all())


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether torch itself copies into it, not a subclass with code of its own."""
    return type(tensor) in _PLAIN_TYPES and tensor.layout == torch.strided and not tensor.is_inference()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def extra_states(choice: Choice, named: Mapping[str, Any], reader: TensorReader, rules: Rules) -> dict[str, Any]:
    """The extra state for each module; raises if one is missing, or is an object that only running code could make."""
    found: dict[str, Any] = {}
    for name, value in choice.state.extra.items():
        rest = name if rules.prefix is None else below(name, rules.prefix)
        if rest is None:
            continue
        short = choice.fit.added + bare(rest).removeprefix(choice.fit.removed)
        if short in found:
            raise CheckpointError("RW734", f"two extra states in the checkpoint are called {short} once wrappers are taken off")
        found[short] = value
    wanted = [name for name in named if is_extra_state(name) and (bare(name) in found or not may_be_missing(name, {}, rules))]
    missing = [name for name in wanted if bare(name) not in found]
    if missing:
        raise CheckpointError("RW734", f"{', '.join(missing[:6])} is missing in the checkpoint", why="a module of the model wants it")
    return {name: _whole(name, found[bare(name)], reader) for name in wanted}


def _whole(name: str, value: Any, reader: TensorReader) -> Any:
    if isinstance(value, Unbuilt):
        raise CheckpointError("RW740", f"{name} cannot be read", why=repr(value))
    if isinstance(value, TensorRecord):
        return reader.read(name, value)
    if isinstance(value, dict):
        return {key: _whole(name, item, reader) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_whole(name, item, reader) for item in value)
    return value
