"""What modules keep beside their tensors (get_extra_state), out of a checkpoint and by the model's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankwise.weights.choosing import Choice
from rankwise.weights.names import bare
from rankwise.weights.records import EXTRA_STATE, CheckpointError, TensorRecord, Unbuilt
from rankwise.weights.tensors import TensorReader


def extra_states(choice: Choice, named: Mapping[str, Any], reader: TensorReader) -> dict[str, Any]:
    """The extra state each module gets; raises where one is missing, or is an object that only running code could make."""
    found: dict[str, Any] = {}
    for name, value in choice.state.extra.items():
        short = choice.fit.added + bare(name).removeprefix(choice.fit.removed)
        if short in found:
            raise CheckpointError("RW734", f"two extra states in the checkpoint are called {short} once wrappers are taken off")
        found[short] = value
    wanted = [name for name in named if name.endswith(EXTRA_STATE) and name not in choice.fit.pairs]
    missing = [name for name in wanted if bare(name) not in found]
    if missing:
        raise CheckpointError("RW734", f"{', '.join(missing[:6])} is missing in the checkpoint", why="a module of the model wants it")
    return {name: _whole(name, found[bare(name)], reader) for name in wanted}


def _whole(name: str, value: Any, reader: TensorReader) -> Any:
    if isinstance(value, Unbuilt):
        raise CheckpointError("RW740", f"{name} cannot be read", why=repr(value))
    if isinstance(value, TensorRecord):
        return reader.read(name, value).clone()
    if isinstance(value, dict):
        return {key: _whole(name, item, reader) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_whole(name, item, reader) for item in value)
    return value
