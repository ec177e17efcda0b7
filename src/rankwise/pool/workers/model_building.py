"""Builds a model inside the worker that runs it, loads its weights, measures its size, and frees its memory; and keeps models that
share a process apart: their random numbers, and torch's default dtype and device, autocast, determinism and precision of products."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import pkgutil
import random
import sys
import threading
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeGuard, TypeVar

import numpy as np
import torch
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks, _has_any_global_hook

from rankwise.errors import UsageError
from rankwise.files import stamp_of
from rankwise.pool.api.model import become_like_the_caller
from rankwise.pool.memory.encoding import each_where_possible, pack, shape_of, unpack
from rankwise.pool.workers.lanes import copy_place, share_weights, to_value
from rankwise.weights.building import evaluating

T = TypeVar("T")
_STAMPED = 1024  # numbers of each parameter that its stamp is made of
_LARGE = 32 << 20  # bytes; an allocator asks the kernel for such a piece alone


@dataclass
class BuiltModel:
    """A model that is ready to run, its device, and its size."""

    name: str
    run: WithOwnDefaults
    device: torch.device
    nbytes: int
    keeps_inputs: bool = False  # it was seen to hold on to an input; from then on it gets copies
    is_plain: bool = True  # takes its inputs as they lie on the lane
    is_checked: bool = True  # whether its batches are checked for rows that depend on each other
    stamp: Any = None  # of the file its weights are from, and of the weights it was built with
    history: Any = None  # what the checks of its batches have shown


def load(spec: dict[str, Any], weights_fd: int | None = None, is_worker: bool = True) -> BuiltModel:
    """Build the model, and share its weights by the file `weights_fd`. Whatever fails here is the user's own code: its exception passes
    through untouched."""
    if is_worker:
        become_like_the_caller(spec)
    elif spec["build"] and spec["cwd"] not in sys.path:
        sys.path.append(spec["cwd"])  # workers look there too; at the end, so that everything else is found where it was before
    seeds = seeded(spec["seed"]) if spec["seed"] is not None else nullcontext()
    with seeds:  # so all replicas draw the same numbers, and seeds that a build sets end with it
        loaded, own = built_with_defaults(lambda: _loaded(spec, weights_fd))
    loaded.run.own = own
    return loaded


def _loaded(spec: dict[str, Any], weights_fd: int | None) -> BuiltModel:
    device = torch.device(spec["device"])
    before = _footprint(device)
    others = Defaults.now()
    args, kwargs, warmup = _unpickled(spec, "given")
    build = _found(spec)
    use_defaults_of_imports(_package_of(spec, build), others)
    stamp: Any = stamp_of(spec["weights"]) if spec["weights"] and os.path.exists(spec["weights"]) else None
    built = build(*args, **kwargs)
    if isinstance(built, torch.nn.Module):
        if spec["weights"]:
            from rankwise.weights.loading import load_weights  # knows every wrapper a checkpoint may carry

            load_weights(built, spec["weights"])
        stamp = stamp, _stamp_of_parameters(built)
        built = (built if spec["program"] else evaluating(built)).to(device)  # a program keeps the mode that it was exported in
    elif not callable(built):
        raise TypeError(f"the build of {spec['name']!r} returned {type(built).__name__}, which cannot be called")
    elif spec["weights"]:
        raise TypeError(f"weights can only be loaded into an nn.Module; the build of {spec['name']!r} returned {type(built).__name__}")
    if warmup is not None:
        _warm_up(built, warmup, device)
    if weights_fd is not None:
        with suppress(OSError):  # no memory for the copy, or a limit of files: the model keeps its own weights
            share_weights(built, weights_fd, bool(spec["program"]))
    nbytes = max(tensor_bytes(built), _footprint(device) - before)
    return BuiltModel(
        spec["name"], WithOwnDefaults(built), device, nbytes, is_plain=device.type == "cpu", is_checked=spec["check_rows"], stamp=stamp
    )


def _stamp_of_parameters(built: torch.nn.Module) -> int:
    """A checksum of how each parameter begins; training changes them all. Replicas with different weights have different stamps, wherever
    `build` has the weights from."""
    stamp = 0
    for parameter in built.parameters():
        with suppress(Exception):  # it has no numbers yet, or not as plain memory
            start = parameter.detach().flatten()[:_STAMPED].to("cpu", copy=True)  # a copy: memory that numpy has seen cannot be shared
            stamp = zlib.crc32(start.view(torch.uint8).numpy().tobytes(), stamp)
    return stamp


def free_memory() -> None:
    """Return the memory of a model that was just dropped to the machine."""
    gc.collect()
    release_gpu_memory()
    return_unused_memory()


def release_gpu_memory() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def return_unused_memory() -> None:
    """Return memory that has been unused for a while to the machine."""
    if hasattr(_libc, "malloc_trim"):  # what glibc keeps
        _libc.malloc_trim(0)
    try:
        torch.empty(_LARGE, dtype=torch.uint8)  # made and freed, never touched: mimalloc returns what it has kept long enough
    except RuntimeError:  # there is no room even for that
        pass


def tensor_bytes(built: Any) -> int:
    """The bytes of parameters and buffers, each piece of memory once; lazy parameters without a shape have none."""
    if not isinstance(built, torch.nn.Module):
        return 0
    storages: dict[int, int] = {}
    tensors = [*built.parameters(), *built.buffers()]
    for tensor in tensors:
        try:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        except (RuntimeError, ValueError):  # no memory of its own: sparse, a subclass made of others (quantized by torchao), lazy
            tensors.extend(_inner_tensors(tensor))
    return sum(storages.values())


def _inner_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    if (flatten := getattr(tensor, "__tensor_flatten__", None)) is not None:
        return [getattr(tensor, name) for name in flatten()[0]]
    return [getattr(tensor, name)() for name in _SPARSE_PARTS.get(tensor.layout, ())]


_SPARSE_PARTS = {torch.sparse_coo: ("_indices", "_values"), torch.sparse_csr: ("crow_indices", "col_indices", "values")}


def _unpickled(spec: dict[str, Any], what: str) -> Any:
    """Unpickle what the caller sent; functions and classes travel by their name."""
    try:
        return pickle.loads(spec[what])
    except AttributeError as error:
        if not spec["main"]:
            raise
        raise UsageError(
            f"what was sent to the worker is not there when it imports {os.path.basename(spec['main'])}: {error}",
            why='what stands under `if __name__ == "__main__":` exists only in the script that is run, not where it is imported',
            next=("move its definition above that line", 'or into a module: Model("my_models:build")'),
        ) from error


def _found(spec: dict[str, Any]) -> Callable[..., Any]:
    if spec["program"]:
        return lambda *args, **kwargs: torch.export.load(spec["program"]).module()
    if spec["pickled"] is not None:
        return _unpickled(spec, "pickled")  # type: ignore[no-any-return]
    return pkgutil.resolve_name(spec["build"])  # type: ignore[no-any-return]


def _package_of(spec: dict[str, Any], build: Any) -> str:
    while isinstance(build, partial):
        build = build.func
    module: str = spec["build"].partition(":")[0] or str(getattr(build, "__module__", ""))
    return module.partition(".")[0]


def _warm_up(built: Callable[..., Any], inputs: Any, device: torch.device) -> None:
    """Run the model once, on inputs encoded as those of a request."""
    node = pack(inputs if isinstance(inputs, tuple) else (inputs,), copy_place)
    try:
        with torch.inference_mode():
            built(*[to_device(item, device) for item in unpack(node, to_value)])
    except Exception as error:
        raise UsageError(
            f"its warm-up failed: {type(error).__name__}: {error}",
            why=f"the model was built, and then run on warmup: {shape_of(node)}\n{traceback.format_exc().rstrip()}",
            next=("give it an input that the model takes: warmup=x; a tuple is several arguments",),
        ) from error


def to_device(value: Any, device: torch.device) -> Any:
    return each_where_possible(value, lambda leaf: leaf.to(device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf)


def _footprint(device: torch.device) -> int:
    return int(torch.cuda.memory_allocated(device)) if device.type == "cuda" else 0


# Memory that a worker's tensors no longer use is kept for the next task, and goes back to the machine when there is none. An allocator that
# returns it at once makes the kernel find and clear the same pages again for each forward, which takes a tenth of the time of a model with
# large activations; one that never does lets an idle worker sit on what its largest task took.
KEPT_S = 1.0
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_LARGEST_MMAP_THRESHOLD = 32 << 20  # glibc takes no more
_libc = ctypes.CDLL(None)


def keep_freed_memory() -> None:
    """Make glibc keep freed memory in this process; `fork_server.py` does so for mimalloc."""
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        _libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)


# What models of one process share though each should have its own: the random generators, and torch's defaults.


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)  # this seeds all GPUs too, when they are first used
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the random generators; afterwards they go on as if nothing had been drawn."""
    numpys, pythons, gpus = np.random.get_state(), random.getstate(), _gpus()
    try:
        with torch.random.fork_rng(devices=gpus, device_type="cuda"):
            seed_all(seed)
            yield
    finally:
        np.random.set_state(numpys)
        random.setstate(pythons)
        if not gpus and _gpus():  # first used meanwhile: they would go on with this seed, the same in all workers
            torch.cuda.manual_seed_all(torch.initial_seed())


def random_states() -> list[Any]:
    """The states of all random generators; another state later means that random numbers were drawn."""
    numpys: Any = np.random.get_state()
    states: list[Any] = [torch.get_rng_state().numpy().tobytes(), random.getstate(), (numpys[1].tobytes(), *numpys[2:])]
    return [*states, *[torch.cuda.get_rng_state(gpu).numpy().tobytes() for gpu in _gpus()]]


def _gpus() -> range:
    return range(torch.cuda.device_count()) if torch.cuda.is_initialized() else range(0)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Defaults:
    """Torch's defaults, which models may set in `build` or in `forward`, though all models of a process share them."""

    dtype: torch.dtype
    device: torch.device | None
    autocast: tuple[tuple[str, bool, torch.dtype], ...]  # device type, whether it is on, to which dtype
    is_deterministic: bool
    only_warns: bool
    products: str  # precision of products of float32 matrices

    @classmethod
    def now(cls) -> Defaults:
        autocast = tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda"))
        is_deterministic = torch.are_deterministic_algorithms_enabled()
        only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
        return cls(torch.get_default_dtype(), _device_of(_device_context()), autocast, is_deterministic, only_warns, _products())

    def restore(self) -> None:
        now = Defaults.now()
        if now.dtype is not self.dtype:
            torch.set_default_dtype(self.dtype)
        if now.device != self.device:
            torch.set_default_device(self.device)
        if replace(now, dtype=self.dtype, device=self.device) == self:
            return
        for kind, is_on, dtype in self.autocast:
            torch.set_autocast_enabled(kind, is_on)
            torch.set_autocast_dtype(kind, dtype)
        torch.use_deterministic_algorithms(self.is_deterministic, warn_only=self.only_warns)
        if self.products and now.products not in ("", self.products):
            torch.set_float32_matmul_precision(self.products)


def _products() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # set for a single library, for which torch has no word
        return ""


# torch.get_default_device() would make a tensor to find out
_DEVICE: Any = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None) or threading.local()


def _device_context() -> Any:
    """The default device's context in this thread. A missing attribute would cost each task a microsecond, so it is set if missing."""
    try:
        return _DEVICE.device_context
    except AttributeError:
        _DEVICE.device_context = None  # as torch leaves it where the default is the CPU again
        return None


def _device_of(context: Any) -> torch.device | None:
    return context.device if context is not None else None


_AS_STARTED = replace(Defaults.now(), products="")  # empty: `restore` leaves the precision as it is


def built_with_defaults(build: Callable[[], T]) -> tuple[T, Defaults | None]:
    """What `build` makes, and the defaults that it has set, if any. They are this model's own; all others keep theirs."""
    others = Defaults.now()
    try:
        built, now = build(), Defaults.now()
        return built, now if now != others else None
    finally:
        others.restore()


_of_packages: dict[str, Defaults] = {}  # the defaults that were set while a package was imported


def use_defaults_of_imports(package: str, others: Defaults) -> None:
    """Defaults that a module sets when it is imported hold for all of its models, though only the first one imports it. `others` are those
    from before it was looked for."""
    now = Defaults.now()
    if now != others:
        _of_packages[package] = now
    elif package in _of_packages:
        _of_packages[package].restore()


class WithOwnDefaults:
    """A model that runs with the defaults that it has set, and leaves all others theirs."""

    def __init__(self, run: Callable[..., Any], own: Defaults | None = None) -> None:
        self._run, self.own = run, own

    def __call__(self, *inputs: Any) -> Any:
        others = self._begin()
        try:
            return self._run(*inputs)
        finally:
            self._end(*others)

    @contextmanager
    def several(self) -> Iterator[Callable[..., Any]]:
        """For calls that follow each other: defaults and hooks are looked at once for all of them, which takes a fifth of a small model's
        time."""
        others = self._begin()
        try:
            yield _shorter(self._run) if _only_calls_forward(self._run) else self._run
        finally:
            self._end(*others)

    def _begin(self) -> tuple[torch.dtype, Any, tuple[bool, bool], Defaults]:
        """Set the model's defaults; returns the others'. Only modes that are usually off are read, because all would take microseconds."""
        on = _modes_on()
        is_usual = self.own is None and not any(on)
        others = torch.get_default_dtype(), _device_context(), on, _AS_STARTED if is_usual else Defaults.now()
        if self.own is not None:
            self.own.restore()
        return others

    def _end(self, dtype: torch.dtype, context: Any, on: tuple[bool, bool], others: Defaults) -> None:
        if self.own is not None or torch.get_default_dtype() is not dtype or _device_context() is not context or _modes_on() != on:
            self.own = Defaults.now()
            replace(others, dtype=dtype, device=_device_of(context)).restore()


def _modes_on() -> tuple[bool, bool]:
    return torch._C._is_any_autocast_enabled(), torch._C._get_deterministic_algorithms()


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _shorter(run: torch.nn.Module) -> Callable[..., Any]:
    """A function that calls only `forward`, as long as a call does nothing else: one call may register a hook, or replace `forward`."""
    kind, hooks, pre_hooks = type(run), run._forward_hooks, run._forward_pre_hooks

    def call(*inputs: Any) -> Any:
        if hooks or pre_hooks or _global_forward_hooks or _global_forward_pre_hooks or type(run) is not kind:
            return run(*inputs)
        return run.forward(*inputs)

    return call


def _only_calls_forward(run: Any) -> TypeGuard[torch.nn.Module]:
    """Whether calling this would do nothing but call its `forward`: a module of Python code without hooks, compilation or tracing."""
    return (
        isinstance(run, torch.nn.Module)
        and not isinstance(run, torch.jit.ScriptModule)
        and type(run).__call__ is torch.nn.Module.__call__
        and getattr(run._call_impl, "__func__", None) is torch.nn.Module._call_impl
        and run._compiled_call_impl is None
        and not any(getattr(run, name) for name in _HOOKS)
        and not _has_any_global_hook()  # type: ignore[no-untyped-call]
        and not torch._C._get_tracing_state()
    )
