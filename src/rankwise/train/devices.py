"""Which device this rank uses, and which backend that device needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from rankwise.findings import Finding, Place
from rankwise.meet.network import interfaces, missing_interface
from rankwise.train.errors import start_finding


@dataclass(frozen=True)
class Claim:
    """A device and its backend. `problem` says why the device cannot be used, and goes to the other ranks when this one registers."""

    backend: str
    device: torch.device
    gpu: str = ""
    problem: Finding | None = None


def claim_device(backend: str | None, local_rank: int, me: Place, environ: Mapping[str, str]) -> Claim:
    """With GPUs: NCCL and the GPU of the local rank. Without: gloo and the CPU. A given backend is kept."""
    wanted = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    if missing := find_missing_interface(wanted, environ, me):
        return Claim(wanted, torch.device("cpu"), problem=missing)
    if not torch.cuda.is_available():
        problem = _unusable(f"rank {me.rank} on {me.host} is to use nccl but sees no GPU", me) if "nccl" in wanted else None
        return Claim(wanted, torch.device("cpu"), problem=problem)
    num_gpus = torch.cuda.device_count()
    if local_rank >= num_gpus:
        if "nccl" not in wanted:
            return Claim(wanted, torch.device("cpu"))
        seen = environ.get("CUDA_VISIBLE_DEVICES")
        limit = f" (CUDA_VISIBLE_DEVICES={seen})" if seen is not None else ""
        text = f"rank {me.rank} on {me.host} is to use GPU {local_rank}, but only {num_gpus} can be seen there{limit}"
        return Claim(wanted, torch.device("cpu"), problem=_unusable(text, me))
    device = torch.device("cuda", local_rank)
    try:
        torch.cuda.set_device(device)
        return Claim(wanted, device, gpu=str(torch.cuda.get_device_properties(device).uuid))
    except RuntimeError as error:  # used exclusively by another process, fallen off the bus, or driver and library do not match
        said = str(error).strip().splitlines()[0][:200]
        return Claim(wanted, torch.device("cpu"), problem=_unusable(f"rank {me.rank} on {me.host} cannot use GPU {local_rank}: {said}", me))


def check_backend(backend: str | None) -> str | None:
    """What is wrong with the backend that the user asked for; None if nothing is."""
    parts = [part.rpartition(":")[2] for part in (backend or "").split(",") if part]  # "cpu:gloo,cuda:nccl" names two
    missing = [part for part in parts if not dist.is_backend_available(part)]
    return f"this torch ({torch.__version__}) has no backend {' and no '.join(missing)}" if missing else None


def find_missing_interface(backend: str, environ: Mapping[str, str], me: Place) -> Finding | None:
    """A finding if a variable names a network interface that this host does not have."""
    variable = "NCCL_SOCKET_IFNAME" if "nccl" in backend else "GLOO_SOCKET_IFNAME"
    wanted = environ.get(variable, "")
    there = sorted(interface.name for interface in interfaces())
    if not missing_interface(variable, wanted, there):
        return None
    summary = f"{variable}={wanted} on rank {me.rank}: there is no such network interface on {me.host} (there are {', '.join(there)})"
    return start_finding("RW108", summary, [me], why="the backend can bind to no address, so the ranks could never connect")


def _unusable(summary: str, me: Place) -> Finding:
    return start_finding("RW122", summary, [me])
