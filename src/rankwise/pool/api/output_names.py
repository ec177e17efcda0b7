"""What a model's outputs are called where nobody says: the one rule of `serve`, `worker` and `predict`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ONE = "output"


def output_names(count: int | None, declared: Sequence[str] = ()) -> list[str]:
    """`output` where a model returns one tensor (`count` is None), `output_0`, `output_1`, … where it returns a list or tuple of them.

    Declared names are used where there are as many as outputs. A dict of outputs brings its own.
    """
    if len(declared) == (1 if count is None else count):
        return list(declared)
    return [ONE] if count is None else [f"{ONE}_{i}" for i in range(count)]


def named_list(outputs: Sequence[Any], declared: Sequence[str] = ()) -> dict[str, Any]:
    return dict(zip(output_names(len(outputs), declared), outputs))
