"""`session()`: the ranks become one job, stage by stage; or every rank says which stage failed and which ranks are to blame."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count

import torch
import torch.distributed as dist

from rankwise.errors import StartError, UsageError
from rankwise.findings import Finding, Place
from rankwise.meet.threads import ThreadTask
from rankwise.ranks import MeetingPlace, RankEnv, read_meeting_place, read_rank_env
from rankwise.stages import ENVIRONMENT
from rankwise.train.agreement import agree, check_gradients
from rankwise.train.alone import start_alone
from rankwise.train.assembly import Assembly
from rankwise.train.devices import check_backend, claim_device
from rankwise.train.errors import start_finding
from rankwise.train.process_group import connect_backend, use_device
from rankwise.train.rank_info import own_info
from rankwise.train.store import open_store

logger = logging.getLogger("rankwise.session")

_LONGEST_S = 1e9  # the longest timeout that threads and torch accept
_DESTROY_S = 10.0
_OUT_OF_RANGE_S = 10.0  # how long a rank that cannot belong to the job tries to tell the others


@dataclass(frozen=True)
class Job:
    """This rank's place in a job that has started. `torch.distributed` works as usual while the session is open."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    backend: str  # "none" in a world of one
    notes: tuple[Finding, ...] = ()  # harmless differences between the ranks
    _assembly: Assembly | None = field(default=None, repr=False)  # None in a world of one, which has no other rank to disagree with
    _visits: Iterator[int] = field(default_factory=lambda: count(1), repr=False)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def agree(self, model: torch.nn.Module) -> None:
        """Compare the model's parameters and buffers with the other ranks', by name, shape and dtype, then take over rank 0's values."""
        if self._assembly is not None:
            agree(self._assembly, model, next(self._visits))

    def check_gradients(self, model: torch.nn.Module) -> None:
        """After the first backward: raise on every rank if the gradients are not the same everywhere, naming the first that differs."""
        if self._assembly is not None:
            check_gradients(self._assembly, model, next(self._visits))


@contextmanager
def session(backend: str | None = None, timeout_s: float = 300.0, *, collective_timeout_s: float | None = None) -> Iterator[Job]:
    """Start this rank's part of the job, and end it on every way out.

    backend: "nccl" or "gloo"; by default what the device needs. timeout_s: how long to wait for ranks that start late.
    collective_timeout_s: how long a collective may take later on; by default torch's own (10 min on NCCL, 30 min on gloo).
    Raises StartError, the same on every rank that can be told.
    """
    for name, value in (("timeout_s", timeout_s), ("collective_timeout_s", 1 if collective_timeout_s is None else collective_timeout_s)):
        if not (isinstance(value, (int, float)) and 0 < value < _LONGEST_S):
            raise UsageError(f"{name} must be a number of seconds, more than 0, not {value!r}", next=(f"{name}=600",))
    if dist.is_initialized():
        raise UsageError("this process already has a process group", next=("remove init_process_group: session() makes the group",))
    began = time.monotonic()
    env = read_rank_env(os.environ)
    if problem := check_backend(backend):
        raise UsageError(problem)
    is_half_set = env.world_size is None and (env.rank is not None or any(os.environ.get(name) for name in ("RANK", "WORLD_SIZE")))
    if env.world_size in (None, 1) and not env.rank and not is_half_set:  # rank 0 of several ranks must not train alone
        job, assembly = _start_alone(backend, env), None
    else:
        job, assembly = _start_together(backend, env, timeout_s, collective_timeout_s)
    if job.is_main:
        logger.info("%d rank(s) with %s on %s, started in %.2f s", job.world_size, job.backend, job.device.type, time.monotonic() - began)
        for note in job.notes:
            logger.warning("%s %s", note.code, note.summary)
    try:
        yield job
    except BaseException as error:
        if assembly is not None:
            assembly.note_failure(error)
        raise
    finally:
        end(assembly, job.device)


def _start_alone(backend: str | None, env: RankEnv) -> Job:
    claim = claim_device(backend or ("gloo" if not torch.cuda.is_available() else None), env.local_rank or 0, _here(0), {})
    if claim.problem:
        raise StartError(claim.problem)
    start_alone()
    return Job(0, 1, env.local_rank or 0, claim.device, "none")


def _start_together(backend: str | None, env: RankEnv, timeout_s: float, collective_timeout_s: float | None) -> tuple[Job, Assembly]:
    deadline = time.monotonic() + timeout_s
    rank, world_size, place = read_place(env, os.environ)
    me = _here(rank)
    try:
        opened = open_store(place, me, timeout_s if rank < world_size else min(timeout_s, _OUT_OF_RANGE_S))
    except StartError:
        if rank < world_size:
            raise
        raise _out_of_range(rank, world_size) from None
    claim = claim_device(backend, env.local_rank or 0, me, os.environ)  # without a local rank: one rank per container, as in Kubernetes
    claim = replace(claim, problem=opened.problem or claim.problem)
    info = own_info(rank, world_size, env.local_rank, claim, opened.address, os.environ)
    assembly = Assembly(opened, place, info)
    try:
        assembly.gather(max(1.0, deadline - time.monotonic()))
        connect_backend(assembly, info, claim.device, collective_timeout_s)
    except BaseException:
        end(None, claim.device)
        raise
    counted = sum(other.host == me.host and other.rank < rank for other in assembly.infos)
    local_rank = counted if env.local_rank is None else env.local_rank
    return Job(rank, world_size, local_rank, claim.device, claim.backend, tuple(assembly.notes), assembly), assembly


def read_place(env: RankEnv, environ: Mapping[str, str]) -> tuple[int, int, MeetingPlace]:
    """Rank, world size and meeting place; raises with a finding that says which of them the environment lacks."""
    place = read_meeting_place(environ)
    missing = [name for name, value in (("RANK", env.rank), ("WORLD_SIZE", env.world_size)) if value is None]
    if place is None:
        missing += [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name)] or ["a usable MASTER_PORT"]
    if env.rank is None or env.world_size is None or place is None:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        there = ", ".join(f"{name}={environ[name]}" for name in names if name in environ)
        why = f"it holds {there or 'none of the variables a launcher sets'}"
        raise StartError(start_finding("RW120", f"the environment lacks {' and '.join(missing)}", [_here(env.rank)], why=why))
    if env.world_size < 2:
        raise _out_of_range(env.rank, env.world_size)
    return env.rank, env.world_size, place


def _out_of_range(rank: int, world_size: int) -> StartError:
    has = f"ranks 0 to {world_size - 1}" if world_size > 1 else ("no rank", "rank 0 alone")[world_size]
    summary = f"rank {rank} is out of range: WORLD_SIZE={world_size} has {has}"
    return StartError(start_finding("RW112", summary, [_here(rank)], stage=ENVIRONMENT))


def _here(rank: int | None) -> Place:
    return Place(rank=rank, host=socket.gethostname(), pid=os.getpid())


def end(assembly: Assembly | None, device: torch.device) -> None:
    """Destroy the process group, whatever state it is in, and leave the store after the others; never wait long for ranks that are gone."""

    def destroy() -> None:
        use_device(device)
        dist.destroy_process_group()

    if dist.is_initialized():
        task = ThreadTask(destroy, "destroy")
        if not task.wait(_DESTROY_S):
            logger.warning("the process group could not be destroyed within %.0f s: other ranks no longer answer", _DESTROY_S)
    if assembly is not None:
        assembly.leave()


__all__ = ["Job", "session"]
