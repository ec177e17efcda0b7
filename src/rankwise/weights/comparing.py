"""Whether a model computes the same with two checkpoints, and how fast."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from rankwise.weights.building import build_model, example_inputs
from rankwise.weights.exporting import check_example, largest_difference
from rankwise.weights.loading import load_weights


@dataclass(frozen=True)
class Compared:
    """How far the outputs are apart, and the seconds it took to load either file into the model."""

    largest_difference: float
    load_s: float
    converted_load_s: float


def compare_outputs(build: str, examples: list[str], path: Path, output: Path, key: str | None, tolerance: float | None) -> Compared:
    """Run the model with the weights of either file on the same input; CheckpointError if the outputs differ."""
    inputs = example_inputs(examples)
    results, seconds = [], []
    for file, key_there in ((path, key), (output, None)):
        model = build_model(build)
        started = time.perf_counter()
        load_weights(model, file, key=key_there, tensors_only=True)
        seconds.append(time.perf_counter() - started)
        with torch.no_grad():
            check_example(model, inputs)
            results.append(model(*inputs))
    return Compared(largest_difference(results[0], results[1], tolerance), *seconds)
