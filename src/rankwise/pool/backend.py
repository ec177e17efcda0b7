"""The interface of an engine (`Backend`), and the machine it may use: cores, memory, GPUs, and the plan for `workers="auto"`.

To add an engine: write a module whose `start` gives a `Backend`; `Pool(models, engine="my_package.my_engine")` uses it."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rankwise import cgroups
from rankwise.errors import UsageError
from rankwise.pool.api.model import Model, check_number, parse_bytes, shown
from rankwise.pool.api.streams import StreamOptions
from rankwise.pool.schedule.state import ModelState, PoolPlan, Seat
from rankwise.pool.stats import Counters

Requests = Iterator[tuple[ModelState, Sequence[Any]]]  # pairs of a model and its inputs
ENGINES = {"processes": "rankwise.pool.processes", "ray": "rankwise.cluster.engine"}


@dataclass(frozen=True)
class PoolOptions:
    """The keyword arguments of `Pool`."""

    workers: int | str = "auto"
    memory: int | str | Mapping[str, int | str] | None = None
    max_queue: int = 10_000
    idle_s: float | None = None
    threads: int | None = None
    pin: bool = False
    lane_bytes: int | str | None = None
    seed: int | None = None
    address: str | None = None  # of the cluster, for an engine that runs on one

    def check(self, engine: Any) -> None:
        """Raise UsageError for mistakes that can be found before anything runs."""
        workers, address = self.workers, self.address
        if workers != "auto" and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 0):
            next_step = '"auto" is one per core, 0 runs models in this process'
            raise UsageError(f'workers is {shown(workers)}; it must be a number, or "auto"', next=(next_step,))
        check_number("max_queue", self.max_queue, least=1, whole=True)
        check_number("idle_s", self.idle_s, least=0, none=True)
        check_number("threads", self.threads, least=1, whole=True, none=True)
        memory_limits(self.memory, ())
        if self.lane_bytes is not None:
            parse_bytes(self.lane_bytes, "lane_bytes")
        if engine not in ENGINES and not (isinstance(engine, str) and "." in engine):
            raise UsageError(
                f"engine is {shown(engine)}; it must be one of {', '.join(ENGINES)}, or a module of your own, as package.module",
                next=('"processes" is this machine, "ray" a Ray cluster',),
            )
        if address is not None and engine != "ray":
            raise UsageError(f"address is {shown(address)}, but the engine {engine!r} has none", next=('give engine="ray"',))
        if address is not None and not isinstance(address, str):
            raise UsageError(f"address is {shown(address)}; it must be the text that ray.init takes", next=('address="10.0.0.1:6379"',))


def memory_limits(memory: Any, devices: Iterable[str]) -> dict[str, int]:
    """The budget in bytes of each of these devices. The key "cuda" stands for all GPUs; entries for other devices are ignored."""
    if memory is None:
        return {}
    devices = {"cpu", *devices}  # a worker with a GPU may hold models of the CPU as well
    if not isinstance(memory, Mapping):
        return {device: parse_bytes(memory, "memory") for device in devices}
    limits = {}
    for device, size in sorted(memory.items(), key=str):  # "cuda" before "cuda:0", which says more
        if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda(:\S+)?", device):
            raise UsageError(f"memory names {device!r}, which is not a device", next=('write it as {"cpu": "4GB", "cuda:0": "20GB"}',))
        nbytes = parse_bytes(size, f"memory of {device!r}")
        limits.update({own: nbytes for own in devices if device in (own, own.split(":")[0])})
    return limits


def check_shape(shape: Any) -> tuple[int, ...]:
    """The shape of a new array as a tuple; raises for anything but whole numbers from 0 on."""
    try:
        found = tuple([size.__index__() for size in (tuple(shape) if isinstance(shape, Iterable) else (shape,))])
    except AttributeError:
        found = (-1,)
    if any(size < 0 for size in found):
        raise UsageError(f"the shape is {shown(shape)}; it must be a whole number of at least 0, or several")
    return found


class Backend(Protocol):
    """Runs tasks somewhere. `Pool` has checked all arguments, and calls from any thread."""

    models: Mapping[str, ModelState]
    plan: PoolPlan  # where workers run, and why so many
    counters: Counters

    @property
    def is_closed(self) -> bool: ...

    def submit(self, model: ModelState, inputs: tuple[Any, ...], deadline_s: float | None, priority: int, seed: int | None) -> Future[Any]:
        """Raises PoolFull rather than wait, and PoolClosed after `close`."""
        ...

    def stream(self, requests: Requests, options: StreamOptions) -> Iterator[Any]:
        """Results in the order of the requests."""
        ...

    def load(self, model: ModelState) -> Future[None]:
        """Load the model; the future is done when a worker has it."""
        ...

    def unload(self, model: ModelState) -> None: ...

    def empty(self, shape: tuple[int, ...], dtype: str, as_tensor: bool) -> Any:
        """An array that is submitted without a copy, if the engine has memory for such arrays."""
        ...

    # An engine may have three more methods. read_in(loop) makes an asyncio loop read the answers itself, which saves a switch of threads
    # for each, until the function that it returns is called; both calls are made in the loop's own thread. can_wait_here() says whether
    # `close` would ever return if this thread called it now; if not, another thread calls it. let_go() says that this thread, which may be
    # reading answers, is about to wait for something else.

    def stats(self) -> dict[str, Any]: ...

    def has_open_tasks(self) -> bool: ...

    def close(self, cancel: bool, timeout: float | None) -> None:
        """Finish what was submitted (or cancel what waits), then let go of everything."""
        ...

    def forget_after_fork(self) -> None:
        """Called in a forked child, which must neither use nor close what belongs to the parent's engine."""
        ...


@runtime_checkable
class Growing(Protocol):
    """An engine whose models may come and go while it runs."""

    def add(self, name: str, model: Model) -> None: ...

    def remove(self, name: str) -> None:
        """The model takes no more tasks, and finishes the tasks it has."""
        ...

    def reload(self, name: str, model: Model) -> Future[None]:
        """The future is done when the new model has taken the old one's place. If the new one cannot be built, the old one stays."""
        ...


def start(engine: str, models: dict[str, Model], options: PoolOptions) -> Backend:
    """Start the engine of this name, or of this module; with `workers=0`, models run in the caller's own process."""
    home = "rankwise.pool.inprocess" if options.workers == 0 and engine == "processes" else ENGINES.get(engine, engine)
    try:
        begin: Callable[..., Backend] = importlib.import_module(home).start
    except (ImportError, AttributeError) as error:
        if engine in ENGINES:
            raise
        raise UsageError(
            f"engine {engine!r} cannot be used: {error}", next=("name a module that has a function start(models, options)",)
        ) from error
    return begin(models, options)


def states_of(models: dict[str, Model], gpus: tuple[str, ...], first: int = 0) -> dict[str, ModelState]:
    """The state of each model, with the device it may run on; they are numbered from `first` on."""
    return {
        name: ModelState(
            number=number,
            name=name,
            device=_device_of(name, model, gpus),
            replicas=model.replicas,
            max_batch=model.max_batch,
            max_delay_s=model.max_delay_ms / 1000,
            nbytes=model.expected_bytes,
            limit_s=model.limit_s,
        )
        for number, (name, model) in enumerate(models.items(), first)
    }


def _device_of(name: str, model: Model, gpus: tuple[str, ...]) -> str:
    """Where the model may run: "cpu", "cuda" for any GPU, or the name under which a worker gets one of them."""
    kind, _, number = model.device.partition(":")
    if kind == "auto":
        return "cuda" if gpus else "cpu"
    if kind == "cuda" and int(number or 0) >= len(gpus):
        shown = f"{len(gpus)} GPUs" if gpus else "no GPU"
        raise UsageError(
            f"model {name!r} wants {model.device}, but this machine shows {shown}", next=('device="auto" takes what there is',)
        )
    return f"cuda:{gpus[int(number)]}" if number else kind


_GPU_THREADS = 2
_NODES = Path("/sys/devices/system/node")


@dataclass(frozen=True)
class Machine:
    cores: int  # that this process may use: affinity and the control group's quota considered
    memory_bytes: int  # that this process may use
    gpus: tuple[str, ...]  # their names, as in CUDA_VISIBLE_DEVICES
    why: str  # where the number of cores comes from


def this_machine() -> Machine:
    allowed = len(os.sched_getaffinity(0))
    quota = min(cgroups.cpu_quotas(), default=None)
    cores = max(1, min(allowed, int(quota + 0.5) or 1)) if quota else allowed
    why = f"a control group allows {quota:g} of {allowed} cores" if quota and cores < allowed else f"{cores} cores"
    return Machine(cores, memory_bytes(), gpus(), why)


def plan_workers(machine: Machine, workers: int | str, wants_gpu: bool, threads: int | None, pin: bool) -> PoolPlan:
    """Workers with their share of the cores. One per core at most for models on the CPU. Two per GPU, so that one computes while the
    other prepares; each with few threads, because more threads would only spin while data is moved, and take the caller's cores."""
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
    return PoolPlan(seats, f"{count} worker{'s' * (count != 1)} on {places} with {share} thread{'s' * (share != 1)} each ({why})")


def cores_of_workers(count: int, share: int, nodes: list[list[int]]) -> list[tuple[int, ...]]:
    """`share` cores for each worker, all on one NUMA node as long as a node has that many left: memory of other nodes is further away."""
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
    """The cores that may be used, node by node; as one node where the kernel does not say."""
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


def memory_bytes() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *[limit for limit, _ in cgroups.memory_limits()]])


def gpus() -> tuple[str, ...]:
    """The GPUs CUDA would show this process, without starting CUDA."""
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
