"""The content of a checkpoint as one dictionary, for `rankwise weights inspect` and its --json. Reads no tensor, imports no torch."""

from __future__ import annotations

import os
from typing import Any

from rankwise.weights.checkpoint import open_checkpoint
from rankwise.weights.parameter_names import wrappers_in
from rankwise.weights.state_dicts import StateDict, find_state_dicts, looks_like
from rankwise.weights.tensor_records import TensorRecord


def inspect_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Names, shapes, dtypes, sizes and prefixes, and what the checkpoint looks like."""
    content = open_checkpoint(path)
    states = find_state_dicts(content)
    leaves = [state for state in states if not state.is_for_training and not _is_only_around_others(state, states)]
    training = [state for state in states if state.is_for_training]
    whole = [state for state in training if not any(other.is_around(state) for other in training)]
    return {
        "path": os.fspath(path),
        "format": content.format,
        "looks_like": looks_like(content, states),
        "files": [{"name": file.name, "bytes": file.stat().st_size} for file in content.files],
        "top_level": {
            str(key): _value_text(value) for key, value in list(content.tree.items())[:200] if not isinstance(value, TensorRecord)
        },
        "weights": [_describe_state(state) for state in (*leaves, *whole)],
        "would_run": list(content.would_run),
        "notes": list(content.notes),
    }


def _describe_state(state: StateDict) -> dict[str, Any]:
    first: dict[Any, str] = {}
    return {
        "key": state.label,
        "kind": "training state" if state.is_for_training else "averaged weights" if state.is_averaged else "weights",
        "prefixes": wrappers_in(state.tensors),
        "tensors": [_describe_tensor(name, record, first) for name, record in state.tensors.items()],
        "parameters": sum(record.numel for record in state.tensors.values()),
        "bytes": state.nbytes,
    }


def _describe_tensor(name: str, record: TensorRecord, first: dict[Any, str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "dtype": record.dtype, "shape": list(record.shape), "bytes": record.nbytes}
    if record.place is not None and (same := first.setdefault(record.place, name)) != name:
        entry["same_as"] = same
    if record.unreadable:
        entry["unreadable"] = record.unreadable
    return entry


def _is_only_around_others(state: StateDict, states: list[StateDict]) -> bool:
    """Whether it only contains other state dicts, and has no tensor of its own."""
    return all("." in name for name in state.tensors) and any(state.is_around(other) for other in states)


def _value_text(value: Any) -> str:
    if isinstance(value, dict):
        return f"dictionary of {len(value)}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 200:
        return "a very large number"
    return repr(value)[:80]
