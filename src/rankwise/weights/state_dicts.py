"""Finds the dictionaries of weights inside a checkpoint, and says what made the checkpoint.

A key says what the tensors below it are: weights, an average of weights, or training state. Keys are read word by word: `optimizer_g` is an
optimizer, `optimal_weights` is not; `model_ema` is an average, `semantic` is not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from rankwise.weights.parameter_names import WRAPPERS, wrappers_in
from rankwise.weights.tensor_records import CheckpointError, Content, Damaged, StateDictNode, TensorRecord, is_extra_state

MAIN_KEYS = ("model", "state_dict", "model_state_dict", "module")  # a dictionary under one of these has the weights
USUAL_KEYS = (*MAIN_KEYS, "net", "network", "weights", "params")
_MAX_DEPTH = 8
_MAX_STEPS = 300_000  # dictionaries that may be visited; an optimizer has one for each parameter, and each is visited several times
_Found = tuple[tuple[str, ...], dict[Any, Any], bool]
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# If a key has one of these words anywhere, what is below it is training state, not weights.
_TRAINING = {
    "optimizer", "optimizers", "optimiser", "optimisers", "optim", "optims", "opt", "opts", "scheduler", "schedulers", "lrscheduler",
    "lrschedulers", "scaler", "scalers", "gradscaler", "rng", "rngs", "grad", "grads", "gradient", "gradients",
}  # fmt: skip
# The last words of a key that names an optimizer's moments. `momentum_encoder` ends otherwise, because it is a network.
_MOMENTS = [
    ("momentum",), ("momenta",), ("momentum", "buffer"), ("momentum", "buffers"), ("moment",), ("moments",), ("velocity",),
    ("velocities",), ("exp", "avg"), ("exp", "avg", "sq"), ("exp", "inf"), ("square", "avg"), ("acc", "delta"), ("adam",), ("adamw",),
    ("sgd",),
]  # fmt: skip
# The last words of a key that names something computed about the weights, or meant to change them: pruning masks, Fisher information.
_ABOUT_WEIGHTS = [
    ("mask",), ("masks",), ("fisher",), ("fisher", "diag"), ("fisher", "matrix"), ("hessian",), ("hessian", "diag"), ("importance",),
    ("importances",), ("saliency",), ("delta",), ("deltas",), ("task", "vector"), ("task", "vectors"), ("error", "feedback"),
]  # fmt: skip
_FILLERS = {"state", "states", "dict", "dicts"}
_AVERAGED = {"ema", "emas", "swa", "averaged", "average", "averages", "avg", "polyak", "shadow"}
_LIGHTNING = {"callbacks", "loops"}  # what Lightning keeps beside the weights


@dataclass(frozen=True)
class StateDict:
    """The tensors below one key of the checkpoint, by their names from there on."""

    key: tuple[str, ...]  # () for the whole file
    tensors: dict[str, TensorRecord]
    extra: dict[str, Any]  # what modules keep beside their tensors (get_extra_state)
    is_for_training: bool = False  # optimizer moments and the like: tensors, but not weights
    doubled: tuple[str, ...] = ()  # names that two different tensors share
    notes: dict[str, dict[str, Any]] = field(default_factory=dict)  # torch's notes about each module, mostly its version

    @property
    def label(self) -> str:
        return ".".join(self.key)

    @property
    def is_averaged(self) -> bool:
        return any(is_averaged_key(part) for part in self.key) or "n_averaged" in self.tensors

    @property
    def nbytes(self) -> int:
        return sum(record.nbytes for record in self.tensors.values())

    def is_around(self, other: StateDict) -> bool:
        return len(self.key) < len(other.key) and other.key[: len(self.key)] == self.key

    def with_extra_apart(self) -> StateDict:
        """This state dict with tensors that are extra state moved to `extra`: a module may change the kind of its extra state."""
        extra = {name: record for name, record in self.tensors.items() if is_extra_state(name)}
        return replace(self, tensors={name: self.tensors[name] for name in self.tensors if name not in extra}, extra=self.extra | extra)

    def is_same_as(self, other: StateDict) -> bool:
        """Whether both have the very same tensors: one dictionary that the checkpoint has under two keys."""
        return self.tensors.keys() == other.tensors.keys() and all(
            record is other.tensors[name] or record.shares_all_with(other.tensors[name]) for name, record in self.tensors.items()
        )


def find_state_dicts(content: Content, own: Collection[str] = frozenset()) -> list[StateDict]:
    """Every dictionary that has tensors below it, the most likely weights first.

    `own` are the parts of the model's names; a key that is one of them is never taken for training state.
    """
    walk = _Walk(own)
    try:
        found = [walk.state_dict(key, node, is_training) for key, node, is_training in walk.dicts(content.tree)]
    except Damaged as error:
        raise CheckpointError("RW732", f"{content.files[0]} is damaged", why=str(error)) from error
    return sorted((state for state in found if state.tensors), key=_order)


def _order(state: StateDict) -> tuple[bool, bool, int, int]:
    last = state.key[-1] if state.key else ""
    rank = USUAL_KEYS.index(last) if last in USUAL_KEYS else len(USUAL_KEYS)
    return state.is_for_training, state.is_averaged, rank, len(state.key)


def looks_like(content: Content, states: list[StateDict]) -> list[str]:
    """What made this checkpoint, as far as can be seen."""
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
    """Goes through the dictionaries that have tensors below them. A dictionary that is referred to from many places counts each time."""

    def __init__(self, own: Collection[str]) -> None:
        self._own = own
        self._steps = 0
        self._fruitful: dict[int, bool] = {}

    def dicts(self, node: dict[Any, Any], key: tuple[str, ...] = (), is_training: bool = False) -> Iterator[_Found]:
        self._count()
        yield key, node, is_training
        if len(key) < _MAX_DEPTH:
            for name, value in node.items():
                if (branch := self._branch(name, value)) is not None:
                    yield from self.dicts(branch, (*key, str(name)), is_training or self._is_training(name, branch, node))

    def state_dict(self, key: tuple[str, ...], node: dict[Any, Any], is_training: bool) -> StateDict:
        tensors: dict[str, TensorRecord] = {}
        extra: dict[str, Any] = {}
        notes: dict[str, dict[str, Any]] = {}
        doubled = []
        for name, value in self._leaves(node, is_training, notes):
            if not isinstance(value, TensorRecord):
                extra[name] = value
            elif tensors.setdefault(name, value) is not value and not value.shares_all_with(tensors[name]):
                doubled.append(name)  # {"a": {"w": …}, "a.w": …}
        return StateDict(key, tensors, extra, is_training, tuple(doubled), notes)

    def _leaves(self, node: dict[Any, Any], is_training: bool, notes: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Tensors and extra state below the node, without its training state, unless it is training state itself. What was noted about
        modules is added to `notes`, by the modules' names from here on."""
        self._count()
        if isinstance(node, StateDictNode):
            notes |= {f"{prefix}{name}".rstrip("."): about for name, about in node.notes.items()}
        for name, value in node.items():
            if isinstance(value, TensorRecord) or is_extra_state(name):
                yield f"{prefix}{name}", value
            elif (branch := self._branch(name, value)) is not None and (is_training or not self._is_training(name, branch, node)):
                yield from self._leaves(branch, is_training, notes, f"{prefix}{name}.")

    def _is_training(self, name: Any, value: dict[Any, Any], siblings: dict[Any, Any]) -> bool:
        """Judged by its key, by what is in it and by what is beside it. A key that is part of the model's names counts as that part,
        whatever the word means elsewhere."""
        is_optimizer = "param_groups" in value and "state" in value
        is_lightnings = str(name) in _LIGHTNING and "pytorch-lightning_version" in siblings
        return is_optimizer or is_lightnings or (is_training_key(name) and str(name) not in self._own)

    def _branch(self, name: Any, value: Any) -> dict[Any, Any] | None:
        """The value as a dictionary if it has tensors below it (a list by its indices); None otherwise, and for a module's extra state."""
        if not isinstance(value, (dict, list, tuple)) or is_extra_state(name) or not self._has_tensors(value):
            return None
        return value if isinstance(value, dict) else dict(enumerate(value))

    def _has_tensors(self, node: Any) -> bool:
        if id(node) not in self._fruitful:
            self._fruitful[id(node)] = False  # until known; ends the search in what contains itself
            inside = node.values() if isinstance(node, dict) else node
            self._fruitful[id(node)] = any(
                isinstance(value, TensorRecord) or (isinstance(value, (dict, list, tuple)) and self._has_tensors(value)) for value in inside
            )
        return self._fruitful[id(node)]

    def _count(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise Damaged(f"its dictionaries refer to each other more than {_MAX_STEPS:,} times")


def words_of(key: Any) -> tuple[str, ...]:
    """The words of a key: those of `optimizerG_state-dict` are optimizer, g, state and dict."""
    return tuple(word.lower() for word in _WORD.findall(str(key)))


def is_averaged_key(key: Any) -> bool:
    return not _AVERAGED.isdisjoint(words_of(key))


@lru_cache(maxsize=10_000)
def is_training_key(key: Any) -> bool:
    """Whether the words of this key name an optimizer, its moments, gradients, a scheduler, a loss scaler, random numbers, or something
    computed about the weights."""
    words = words_of(key)
    if not _TRAINING.isdisjoint(words) or words[-2:] in (("random", "state"), ("random", "states")):
        return True
    while words and (words[-1] in _FILLERS or len(words[-1]) == 1):  # adam_m, momentum_state_dict
        words = words[:-1]
    return any(words[-len(ending) :] == ending for ending in (*_MOMENTS, *_ABOUT_WEIGHTS))
