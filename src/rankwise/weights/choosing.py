"""Chooses, of all state dicts in a checkpoint, the one the model wants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rankwise.errors import UsageError
from rankwise.weights.matching import Fit, Rules, Slot, fit
from rankwise.weights.mismatch import mismatch
from rankwise.weights.records import CheckpointError
from rankwise.weights.state_dicts import StateDict


@dataclass(frozen=True)
class Choice:
    """The state dict that is used, how it fits, and the others that would have fitted as well."""

    state: StateDict
    fit: Fit
    also: tuple[str, ...]


def choose(path: Path, states: list[StateDict], slots: Mapping[str, Slot], key: str | None, rules: Rules) -> Choice:
    """The state dict that fits the whole model; raises CheckpointError where none or several do."""
    candidates = with_key(path, states, key) if key is not None else [state for state in states if not state.is_for_training]
    if not candidates:
        raise CheckpointError("RW735", f"{path} holds no weights", why=_found_text(states))
    fits = [(state, fit(slots, state.tensors, rules)) for state in candidates]
    whole = [(state, one) for state, one in fits if one.is_whole]
    if not whole:
        state, one = min(fits, key=lambda pair: (len(pair[1].missing) + len(pair[1].wrong), pair[1].faults))
        raise mismatch(path, state, one, slots)
    distinct = _without_parents(whole)
    best, one = distinct[0]
    rivals = [state for state, _ in distinct[1:] if not state.is_averaged and not _is_usual(best)]
    if key is None and rivals:
        names = ", ".join(f"key={state.label!r}" for state in (best, *rivals))
        raise CheckpointError("RW735", f"{path} holds several sets of weights that fit", next=(f"give one of {names}",))
    return Choice(best, one, tuple(state.label or "the whole file" for state, _ in distinct[1:]))


def with_key(path: Path, states: list[StateDict], key: str) -> list[StateDict]:
    found = [state for state in states if state.label == key]
    if not found:
        known = ", ".join(repr(state.label) for state in states if state.key) or "none"
        raise UsageError(f"{path} has no weights under {key!r}", why=f"the keys with tensors are {known}")
    return found


def _without_parents(whole: list[tuple[StateDict, Fit]]) -> list[tuple[StateDict, Fit]]:
    """A dictionary and the one around it hold the same tensors; only the inner one counts."""
    keys = [state.key for state, _ in whole]
    parents = {key[:depth] for key in keys for depth in range(len(key))}
    return [(state, one) for state, one in whole if state.key not in parents]


def _is_usual(state: StateDict) -> bool:
    return not state.key or state.key[-1] in ("model", "state_dict", "model_state_dict")


def _found_text(states: list[StateDict]) -> str:
    return f"tensors were found under {', '.join(repr(state.label) for state in states[:8])}" if states else "there is no tensor in it"
