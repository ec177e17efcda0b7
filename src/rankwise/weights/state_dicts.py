"""Finds the dictionaries of weights inside a checkpoint, and says what the whole looks like."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rankwise.weights.names import WRAPPERS, wrappers_in
from rankwise.weights.records import CheckpointError, Content, Damaged, TensorRecord

_USUAL_KEYS = ("model", "state_dict", "model_state_dict", "module", "net", "network", "weights", "params")
_NOT_WEIGHTS = ("optim", "sched", "scaler", "rng", "random_state", "callbacks", "loops")
_AVERAGED = ("ema", "averag", "swa", "shadow", "teacher", "polyak")
_MAX_DEPTH = 8
_MAX_STEPS = 100_000  # dictionaries visited; a checkpoint in earnest has dozens


@dataclass(frozen=True)
class StateDict:
    """The tensors below one key of the checkpoint, by the names they have from there."""

    key: tuple[str, ...]  # () for the whole file
    tensors: dict[str, TensorRecord]
    values: dict[str, Any]  # what is no tensor: a module's extra state

    @property
    def label(self) -> str:
        return ".".join(self.key)

    @property
    def is_averaged(self) -> bool:
        return any(word in part.lower() for part in self.key for word in _AVERAGED) or "n_averaged" in self.tensors

    @property
    def is_for_training(self) -> bool:
        """Optimizer moments and the like: tensors, but not weights."""
        return any(word in part.lower() for part in self.key for word in _NOT_WEIGHTS)

    @property
    def nbytes(self) -> int:
        return sum(record.nbytes for record in self.tensors.values())


def find_state_dicts(content: Content) -> list[StateDict]:
    """Every dictionary that has tensors below it, the likeliest weights first."""
    walk = _Walk()
    try:
        found = [StateDict(key, dict(walk.tensors(node)), dict(_values(node))) for key, node in walk.dicts(content.tree)]
    except Damaged as error:
        raise CheckpointError("RW732", f"{content.files[0]} is damaged", why=str(error)) from error
    found = [_with_aliases(state, content.aliases) if not state.key else state for state in found if state.tensors]
    return sorted(found, key=_order)


def _order(state: StateDict) -> tuple[bool, bool, int, int]:
    last = state.key[-1] if state.key else ""
    rank = _USUAL_KEYS.index(last) if last in _USUAL_KEYS else len(_USUAL_KEYS)
    return state.is_for_training, state.is_averaged, rank, len(state.key)


def looks_like(content: Content, states: list[StateDict]) -> list[str]:
    """What made this checkpoint, as far as it shows."""
    keys = {str(key) for key in content.tree}
    prefixes = wrappers_in(name for state in states[:1] for name in state.tensors)
    signs = [content.format]
    if "pytorch-lightning_version" in keys:
        signs.append("Lightning checkpoint")
    if "rankwise" in keys:
        signs.append("rankwise.train checkpoint")
    wrapped = dict.fromkeys(part for prefix in prefixes for part in prefix.split(".") if part in WRAPPERS)
    if any("n_averaged" in state.tensors for state in states):
        signs.append("averaged weights (EMA or SWA) of torch.optim.swa_utils.AveragedModel")
        wrapped.pop("module", None)
    signs += [f"wrapped by {WRAPPERS[part]}" for part in wrapped]
    if any(state.is_for_training for state in states):
        signs.append("with the optimizer's state")
    if any(name.endswith("_flat_param") for state in states for name in state.tensors):
        signs.append("flattened by FSDP: one rank's shard, not whole parameters")
    return signs


class _Walk:
    """Goes through the dictionaries that have tensors below them. One that is referred to from many places counts each time."""

    def __init__(self) -> None:
        self._steps = 0
        self._fruitful: dict[int, bool] = {}

    def dicts(self, node: dict[Any, Any], key: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[Any, Any]]]:
        self._count()
        yield key, node
        if len(key) < _MAX_DEPTH:
            for name, value in node.items():
                if isinstance(value, dict) and self._has_tensors(value):
                    yield from self.dicts(value, (*key, str(name)))

    def tensors(self, node: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, TensorRecord]]:
        self._count()
        for name, value in node.items():
            if isinstance(value, TensorRecord):
                yield f"{prefix}{name}", value
            elif isinstance(value, dict) and self._has_tensors(value) and (prefix or not _is_training_key(name)):
                yield from self.tensors(value, f"{prefix}{name}.")

    def _has_tensors(self, node: dict[Any, Any]) -> bool:
        if id(node) not in self._fruitful:
            self._fruitful[id(node)] = False  # until known; what contains itself ends here
            self._fruitful[id(node)] = any(
                isinstance(value, TensorRecord) or (isinstance(value, dict) and self._has_tensors(value)) for value in node.values()
            )
        return self._fruitful[id(node)]

    def _count(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise Damaged(f"its dictionaries refer to each other more than {_MAX_STEPS:,} times")


def _is_training_key(name: Any) -> bool:
    return any(word in str(name).lower() for word in _NOT_WEIGHTS)


def _values(node: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    return ((str(name), value) for name, value in node.items() if not isinstance(value, (TensorRecord, dict)) or "extra_state" in str(name))


def _with_aliases(state: StateDict, aliases: dict[str, str]) -> StateDict:
    known = {name: state.tensors[kept] for name, kept in aliases.items() if kept in state.tensors}
    return StateDict(state.key, {**state.tensors, **known}, state.values)
