"""Collectives on one host: two ranks of our own, through gloo, and through NCCL where there are two GPUs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rankwise.meet.ports import free_port
from rankwise.preflight.job import Facts, Here
from rankwise.preflight.torch_process import TorchProcess

_LIMIT_S = 15.0


def local_collective(here: Here, say: Callable[[str], None]) -> Facts:
    if here.ranks < 2:
        return {"blind": "one rank has nobody to reduce with"}
    first = here.torch.facts(here.patience_s())
    if "error" in first:
        return {"blind": "torch cannot be imported"}
    second = TorchProcess(here.environ)
    try:
        found: Facts = {}
        for backend in ("gloo", "nccl") if first.get("gpus", 0) > 1 else ("gloo",):
            say(f"trying collectives on {backend}")
            found[backend] = _run(here, [here.torch, second], backend)
        return found
    finally:
        second.close()


def _run(here: Here, processes: list[TorchProcess], backend: str) -> dict[str, Any]:
    command = {"do": "collective", "backend": backend, "world_size": len(processes), "limit_s": _LIMIT_S}
    place = {"host": "127.0.0.1", "port": free_port()}
    answers: dict[str, Any] = {}

    def ask(rank: int, process: TorchProcess) -> None:
        left = max(1.0, min(_LIMIT_S + 10.0, here.seconds_left()))
        answers[f"rank {rank}"] = process.ask({**command, **place, "rank": rank, "device": rank}, left)

    threads = [threading.Thread(target=ask, args=(rank, process), daemon=True) for rank, process in enumerate(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers
