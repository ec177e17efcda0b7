"""The random numbers of torch (on all devices), numpy and Python in this process: started from a seed, and put back as they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)  # also of all GPUs, when they are first used
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Numbers from this seed; afterwards those that would have come without."""
    cards = _cards()
    before = torch.get_rng_state(), np.random.get_state(), random.getstate(), [torch.cuda.get_rng_state(card) for card in cards]
    seed_all(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])
        for card, state in zip(cards, before[3]):
            torch.cuda.set_rng_state(state, card)


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
    numpys: Any = np.random.get_state()
    states: list[Any] = [torch.get_rng_state().numpy().tobytes(), random.getstate(), (numpys[1].tobytes(), *numpys[2:])]
    return [*states, *[torch.cuda.get_rng_state(card).numpy().tobytes() for card in _cards()]]


def _cards() -> range:
    return range(torch.cuda.device_count()) if torch.cuda.is_initialized() else range(0)  # type: ignore[no-untyped-call]
