"""The facts that each rank registers with: who it is, where it is, and what it runs with."""

from __future__ import annotations

import os
import platform
import socket
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from ipaddress import ip_address
from typing import Any

import torch
import torch.distributed as dist

from rankwise.findings import Place
from rankwise.meet.network import Interface, gloo_interface, interface_of, interfaces, nccl_interface, source_address
from rankwise.ranks import read_job_name
from rankwise.train.devices import Claim
from rankwise.version import __version__

_SETTINGS = ("NCCL_", "GLOO_", "TORCH_NCCL_", "TORCH_DISTRIBUTED_DEBUG")


@dataclass(frozen=True)
class RankInfo:
    """The facts about one rank of the job. `id` is new in every process, so a restarted rank is not taken for the one before it."""

    id: str
    rank: int
    world_size: int
    local_rank: int | None
    host: str
    pid: int
    job: str = ""
    launcher: int = 0  # the parent's pid: a rank started again by the same launcher replaces the one before
    backend: str = ""
    device: str = "cpu"
    gpu: str = ""  # the GPU's UUID, the same in every process
    address: str = ""  # the address at which this rank's backend tells the others to connect
    route: str = ""  # this host's own address on the way to the store
    interface: str = ""  # the interface of `address`
    route_interface: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    problem: dict[str, Any] | None = None  # a finding about this rank, known before it registered
    is_gone: bool = False  # it left before all had registered; `problem` says why

    @property
    def place(self) -> Place:
        return Place(rank=self.rank, host=self.host, pid=self.pid)

    @property
    def uses_nccl(self) -> bool:
        return "nccl" in self.backend

    def dials(self, other: RankInfo) -> bool:
        """Whether this rank's backend connects to the other's address. With gloo the rank with the higher address does, with NCCL both."""
        return self.uses_nccl or _as_bytes(self.address) >= _as_bytes(other.address)

    def shortened(self) -> dict[str, Any]:
        """The facts that every rank gets about every other rank."""
        return {**asdict(self), "versions": {}, "settings": {}, "job": ""}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> RankInfo:
        """The facts from another process, perhaps of another version of rankwise: unknown fields are ignored."""
        return RankInfo(**{name: data[name] for name in RankInfo.__dataclass_fields__ if name in data})


def own_info(rank: int, world_size: int, local_rank: int | None, claim: Claim, store_address: str, environ: Mapping[str, str]) -> RankInfo:
    """The facts about this process."""
    known = interfaces()
    route = source_address(store_address)
    address = _offered_address(claim.backend, environ, known) or route
    return RankInfo(
        id=uuid.uuid4().hex[:16],
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        job=read_job_name(environ),
        launcher=os.getppid(),
        backend=claim.backend,
        device=str(claim.device),
        gpu=claim.gpu,
        address=address,
        route=route,
        interface=_name_of(address, known),
        route_interface=_name_of(route, known),
        versions=own_versions(claim.backend),
        settings={name: value for name, value in sorted(environ.items()) if name.startswith(_SETTINGS)},
        problem=claim.problem.to_dict() if claim.problem else None,
    )


def _offered_address(backend: str, environ: Mapping[str, str], known: list[Interface]) -> str:
    """The address that this rank's backend offers to the others. NCCL chooses by itself: empty if no variable tells it what to use."""
    if "nccl" not in backend:
        return gloo_interface(environ, socket.gethostname(), known)[1]
    return nccl_interface(environ, known)[1] if environ.get("NCCL_SOCKET_IFNAME") else ""


def _name_of(address: str, known: list[Interface]) -> str:
    interface = interface_of(address, known)
    return interface.name if interface else ""


def _as_bytes(address: str) -> bytes:
    try:
        return ip_address(address).packed
    except ValueError:
        return b""


def own_versions(backend: str) -> dict[str, str]:
    versions = {"torch": str(torch.__version__), "python": platform.python_version(), "rankwise": __version__}
    if backend == "nccl" and dist.is_nccl_available():
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return versions
