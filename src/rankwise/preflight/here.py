"""This host as the checks see it: the plan, the environment, the time left, and a process that may import torch."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rankwise.preflight.gpus import gpu_facts
from rankwise.preflight.plan import CheckPlan
from rankwise.preflight.torch_process import TorchProcess


@dataclass
class Here:
    """What a look may use. `torch` runs in a process of its own, so that a broken or slow torch breaks or slows nothing else."""

    plan: CheckPlan
    torch: TorchProcess
    deadline: float
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def patience_s(self) -> float:
        """For one look: half of what is left, so that a host that is stuck leaves the others time to measure."""
        return max(0.0, self.seconds_left() / 2)

    @cached_property
    def name(self) -> str:
        return socket.gethostname()

    @cached_property
    def ranks(self) -> int:
        """Ranks this host is to run: `--nproc-per-node`, with torchrun's words for it resolved."""
        if self.plan.nproc.isdecimal():
            return int(self.plan.nproc)
        gpus = int(self.torch.facts(self.patience_s()).get("gpus", 0))
        return gpus if self.plan.nproc == "gpu" or (self.plan.nproc == "auto" and gpus) else os.cpu_count() or 1

    @cached_property
    def gpus(self) -> dict[str, Any]:
        return gpu_facts()
