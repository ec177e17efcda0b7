"""Weights: any checkpoint in, a plain model out; nothing in a checkpoint is ever executed.

`checkpoint` finds out what a file is and has it read into records, `state_dicts` finds the weights among them, `matching` and
`choosing` decide which tensor belongs to which name, `loading` fills the model, `inspecting` and `converting` serve the command
line. Reading alone needs no torch, so nothing here is imported before it is used.
"""

from __future__ import annotations

from typing import Any

__all__ = ["load_weights"]


def __getattr__(name: str) -> Any:
    if name != "load_weights":
        raise AttributeError(f"module 'rankwise.weights' has no attribute {name!r}")
    from rankwise.weights.loading import load_weights

    return load_weights
