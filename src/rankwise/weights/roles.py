"""What a key of a checkpoint says about the tensors below it: weights, an average of weights, or training state.

Keys are read word by word: `optimizer_g` is an optimizer, `optimal_weights` is none; `model_ema` is an average, `semantic` is none.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# One of these anywhere in a key: what is below it serves the training, and is no weights.
_TRAINING = {
    "optimizer", "optimizers", "optimiser", "optimisers", "optim", "optims", "opt", "opts", "scheduler", "schedulers", "lrscheduler",
    "lrschedulers", "scaler", "scalers", "gradscaler", "rng", "rngs", "grad", "grads", "gradient", "gradients",
}  # fmt: skip
# What a key ends with, where it names an optimizer's moments. `momentum_encoder` ends otherwise: that is a network.
_MOMENTS = [
    ("momentum",), ("momenta",), ("momentum", "buffer"), ("momentum", "buffers"), ("moment",), ("moments",), ("velocity",),
    ("velocities",), ("exp", "avg"), ("exp", "avg", "sq"), ("exp", "inf"), ("square", "avg"), ("acc", "delta"), ("adam",), ("adamw",),
    ("sgd",),
]  # fmt: skip
# The same, where it names what was computed about the weights, or is to be applied to them: pruning masks, Fisher information, differences.
_ABOUT_WEIGHTS = [
    ("mask",), ("masks",), ("fisher",), ("fisher", "diag"), ("fisher", "matrix"), ("hessian",), ("hessian", "diag"), ("importance",),
    ("importances",), ("saliency",), ("delta",), ("deltas",), ("task", "vector"), ("task", "vectors"), ("error", "feedback"),
]  # fmt: skip
_FILLERS = {"state", "states", "dict", "dicts"}
_AVERAGED = {"ema", "emas", "swa", "averaged", "average", "averages", "avg", "polyak", "shadow"}
_LIGHTNING = {"callbacks", "loops"}  # what Lightning keeps beside the weights


def words_of(key: Any) -> tuple[str, ...]:
    """The words of a key: `optimizerG_state-dict` is optimizer, g, state, dict."""
    return tuple(word.lower() for word in _WORD.findall(str(key)))


def is_averaged_key(key: Any) -> bool:
    return not _AVERAGED.isdisjoint(words_of(key))


@lru_cache(maxsize=10_000)
def is_training_key(key: Any) -> bool:
    """Whether the words of this key name an optimizer, its moments, gradients, a scheduler, a loss scaler, random numbers, or what was
    computed about the weights."""
    words = words_of(key)
    if not _TRAINING.isdisjoint(words) or words[-2:] in (("random", "state"), ("random", "states")):
        return True
    while words and (words[-1] in _FILLERS or len(words[-1]) == 1):  # adam_m, momentum_state_dict
        words = words[:-1]
    return any(words[-len(ending) :] == ending for ending in (*_MOMENTS, *_ABOUT_WEIGHTS))


def is_training_state(key: Any, value: Any, siblings: Any, own: Collection[str]) -> bool:
    """The same of a dictionary in a checkpoint, by what is in it and beside it too.

    A dictionary called like a part of the model (`own`) is that part, whatever the word means elsewhere.
    """
    is_optimizer = isinstance(value, dict) and "param_groups" in value and "state" in value
    is_lightnings = str(key) in _LIGHTNING and "pytorch-lightning_version" in siblings
    return is_optimizer or is_lightnings or (is_training_key(key) and str(key) not in own)
