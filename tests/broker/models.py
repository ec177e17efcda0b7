"""Models for the tests of brokers."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch


class Slow(torch.nn.Module):
    """Its input, after half a second."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.5)
        return x


class Noted(torch.nn.Module):
    """Twice its input, after a while; notes the first number of it and the time, in a file of this host."""

    def __init__(self, path: str, delay_s: float = 0) -> None:
        super().__init__()
        self.path, self.delay_s = Path(f"{path}-{socket.gethostname()}"), delay_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.path.open("a") as file:
            file.write(f"{int(x.flatten()[0])} {time.time()}\n")
        time.sleep(self.delay_s)
        return x * 2


def shout() -> Any:
    return lambda texts: np.array([item.upper() for item in texts.ravel().tolist()], object).reshape(texts.shape)


def pair() -> Any:
    return lambda x: (x.sum(1), x.shape[0])
