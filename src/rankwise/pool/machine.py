"""What this machine offers a pool: cores it may use, memory, GPUs; and the plan for `workers="auto"`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_GPU_THREADS = 2
_NODES = Path("/sys/devices/system/node")
# Read when torch, MKL, OpenBLAS or numexpr are loaded, so they are set before that.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True)
class Seat:
    """What a worker is given: its device, its share of the cores, and the cores themselves where it is pinned."""

    device: str
    threads: int
    cpus: tuple[int, ...] = ()

    @property
    def env(self) -> dict[str, str]:
        shown = self.device.split(":")[1] if ":" in self.device else ""
        threads = {name: str(self.threads) for name in THREAD_VARIABLES}
        return {**threads, "CUDA_VISIBLE_DEVICES": shown}


@dataclass(frozen=True)
class Machine:
    cores: int  # that this process may use: affinity and the control group's quota considered
    memory_bytes: int  # that may be used here
    gpus: tuple[str, ...]  # what CUDA_VISIBLE_DEVICES would call them
    why: str  # where the number of cores comes from


@dataclass(frozen=True)
class Plan:
    """Who sits where, and the sentence that explains it."""

    seats: list[Seat]
    why: str


def look() -> Machine:
    allowed = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    cores = max(1, min(allowed, int(quota + 0.5) or 1)) if quota else allowed
    why = f"a control group allows {quota:g} of {allowed} cores" if quota and cores < allowed else f"{cores} cores"
    return Machine(cores, memory_bytes(), gpus(), why)


def plan(machine: Machine, workers: int | str, wants_gpu: bool, threads: int | None, pin: bool) -> Plan:
    """Workers with their share of the cores. One per core at most for models on the CPU; two per GPU, so that one computes while
    the other prepares, each with few threads: more of them spin beside the work of moving numbers, and take the caller's time."""
    devices = [f"cuda:{gpu}" for gpu in machine.gpus] if wants_gpu and machine.gpus else ["cpu"]
    if workers == "auto":
        count = 2 * len(devices) if devices != ["cpu"] else machine.cores
        why = f"{machine.why}" + (f", {len(machine.gpus)} GPUs" if devices != ["cpu"] else "")
    else:
        count, why = int(workers), f"asked for {workers}; {machine.why}"
    share = threads or max(1, machine.cores // count)
    if devices != ["cpu"] and threads is None:
        share = min(share, _GPU_THREADS)
    own = cores_of_workers(count, share, numa_nodes(os.sched_getaffinity(0))) if pin else [()] * count
    seats = [Seat(devices[i % len(devices)], share, own[i]) for i in range(count)]
    places = ", ".join(dict.fromkeys(seat.device for seat in seats))
    return Plan(seats, f"{count} workers on {places} with {share} threads each ({why})")


def cores_of_workers(count: int, share: int, nodes: list[list[int]]) -> list[tuple[int, ...]]:
    """`share` cores for each worker, all on one NUMA node as long as one has that many left: memory of another is further away."""
    free: list[list[int]] = []
    taken = []
    for _ in range(count):
        if sum(map(len, free)) < share:  # more threads than cores: they have to take turns
            free = [list(node) for node in nodes]
        roomiest = max(free, key=len)  # so that workers spread over the nodes, each of which has its own way to the memory
        if len(roomiest) < share:
            roomiest = [core for node in free for core in node]
        own = [roomiest[k % len(roomiest)] for k in range(share)]
        free = [[core for core in node if core not in own] for node in free]
        taken.append(tuple(own))
    return taken


def numa_nodes(allowed: set[int], folder: Path = _NODES) -> list[list[int]]:
    """The cores that may be used, node by node; all of them as one where the kernel does not say."""
    nodes: list[list[int]] = []
    for path in sorted(folder.glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        try:
            nodes.append(sorted(allowed & _parse_cores((path / "cpulist").read_text())))
        except (OSError, ValueError):
            return [sorted(allowed)]
    known = {core for node in nodes for core in node}
    return [node for node in (*nodes, sorted(allowed - known)) if node]


def _parse_cores(text: str) -> set[int]:
    """`0-3,8` as the kernel writes it; a node may have memory and no cores."""
    spans = [span.partition("-") for span in text.strip().split(",") if span]
    return {core for first, _, last in spans for core in range(int(first), int(last or first) + 1)}


def cpu_quota() -> float | None:
    """Cores the control group allows (v2, then v1); None where it does not say."""
    try:
        limit, period = (_CGROUP / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        limit_us = int((_CGROUP / "cpu/cpu.cfs_quota_us").read_text())
        return None if limit_us <= 0 else limit_us / int((_CGROUP / "cpu/cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None


def memory_bytes() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return min(total, int((_CGROUP / name).read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return total


def gpus() -> tuple[str, ...]:
    """The cards CUDA would show this process, without starting CUDA."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None:
        return tuple(name.strip() for name in shown.split(",") if name.strip() and name.strip() != "-1")
    if not Path("/dev/nvidiactl").exists():
        return ()
    try:
        import pynvml  # type: ignore[import-untyped]

        pynvml.nvmlInit()
        try:
            return tuple(str(i) for i in range(pynvml.nvmlDeviceGetCount()))
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # no driver, or one that does not answer
        return ()
