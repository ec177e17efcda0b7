"""The random numbers of torch, numpy and Python in this process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass
class Drawn:
    anything: bool = False


@contextmanager
def draws() -> Iterator[Drawn]:
    """Tells afterwards whether any were drawn meanwhile."""
    drawn, before = Drawn(), _states()
    yield drawn
    drawn.anything = _states() != before


def _states() -> list[Any]:
    states = [torch.get_rng_state().numpy().tobytes(), random.getstate(), np.random.get_state(legacy=False)["state"]]
    states[2] = {name: item.tobytes() if hasattr(item, "tobytes") else item for name, item in states[2].items()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states += [state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()]
    return states
