"""Makes a model ready for distributed training: device, BatchNorm, recomputation, compilation and DDP, in the right order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from fnmatch import fnmatch
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.utils.checkpoint import checkpoint

from rankwise.errors import TrainError, UsageError
from rankwise.train import group
from rankwise.train.errors import train_error
from rankwise.train.parameters import DryRun, dry_run, listed, remember

log = logging.getLogger("rankwise.train")


def wrap(
    model: nn.Module,
    *,
    device: torch.device | str | None = None,
    sample: Any = None,
    sync_batchnorm: bool = False,
    recompute: str | Iterable[str] = (),
    compile: bool | dict[str, Any] = False,
    **ddp_options: Any,
) -> nn.Module:
    """The model on its device, in DDP if there is a process group.

    With a `sample` (the model's arguments) one forward and backward is tried to see which settings DDP needs; what is chosen and why
    goes to the log `rankwise.train`. `recompute` names modules (`"layers.*"`) whose activations are computed again in the backward pass
    instead of kept. `compile` compiles the model (a dict holds options for `torch.compile`) without changing its parameters' names.
    """
    if unknown := [name for name in ddp_options if name not in signature(DistributedDataParallel).parameters]:
        near = get_close_matches(unknown[0], signature(DistributedDataParallel).parameters, 3)
        raise UsageError(f"{unknown[0]} is not an option of wrap or of DistributedDataParallel", next=tuple(f"{name}=" for name in near))
    device = own_device() if device is None else numbered(torch.device(device))
    model.to(device)
    for name in matching_modules(model, [recompute] if isinstance(recompute, str) else recompute):
        _recompute(model.get_submodule(name))
    seen = DryRun() if sample is None else dry_run(model, sample, device)
    check_ready(model, device)
    if not group.is_distributed():
        return _compiled(model, compile)
    if sync_batchnorm and device.type == "cpu":
        log.warning("sync_batchnorm: PyTorch has it for GPUs only; on the CPU each rank keeps its own BatchNorm statistics")
    elif sync_batchnorm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    check_same_model(model)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        log.info("not in DDP: no parameter needs a gradient, so there is nothing to average")
        return _compiled(model, compile)
    settings, reasons = choose_settings(model, _over_all_ranks(seen))
    for reason in reasons:
        log.info("%s", reason)
    if device.type == "cuda":
        settings["device_ids"] = [device.index]
    wrapper = DistributedDataParallel(_compiled(model, compile), **{**settings, **ddp_options})
    remember(wrapper)
    group.wrappers.add(wrapper)
    return wrapper


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside DDP and torch.compile, in whatever order they were put on."""
    while isinstance(model, DistributedDataParallel) or hasattr(model, "_orig_mod"):
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module  # type: ignore[assignment]
    return model


def own_device() -> torch.device:
    """The GPU that `torch.cuda.set_device` or the session has made current; the CPU if there is none."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def numbered(device: torch.device) -> torch.device:
    """The device with its number: `cuda` becomes the current GPU, as the model's tensors will name it."""
    return torch.device("cuda", torch.cuda.current_device()) if device == torch.device("cuda") else device


def choose_settings(model: nn.Module, seen: DryRun) -> tuple[dict[str, Any], list[str]]:
    """DDP's settings for this model, with a sentence for each setting that is not the default."""
    settings: dict[str, Any] = {}
    reasons = []
    if not any(getattr(module, "sparse", False) for module in model.modules()):
        settings["gradient_as_bucket_view"] = True
        reasons.append("gradient_as_bucket_view=True: no sparse gradients, so gradients and buckets can share their memory")
    if seen.unused:
        settings["find_unused_parameters"] = True
        names = listed(list(seen.unused))
        reasons.append(f"find_unused_parameters=True: no gradient in the dry run for {names}; freeze or remove them to save the search")
    if seen.repeated:
        settings["static_graph"] = True
        settings.pop("find_unused_parameters", None)  # a static graph finds them in its first step
        names = listed(list(seen.repeated))
        reasons.append(f"static_graph=True: more than one gradient in a backward for {names} (re-entrant checkpointing)")
    return settings, reasons


def check_ready(model: nn.Module, device: torch.device) -> None:
    """Raise if the model has parameters or buffers that DDP cannot handle."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise UsageError(f"{name} has no shape yet", next=("pass sample=, so that a dry run gives it one",))
        if tensor.device != device:
            raise train_error("RW701", f"{name} is on {tensor.device}, the model is to be on {device}")
    if hidden := list(find_unregistered(model)):
        raise train_error("RW713", f"layers or parameters the model does not know it has: {listed(hidden)}")


def find_unregistered(model: nn.Module) -> Iterable[str]:
    """Names of plain lists and dicts that hold layers or parameters, where the model's `parameters()` and `to()` do not find them."""
    known = {id(thing) for thing in (*model.modules(), *model.parameters())}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            held = value.values() if isinstance(value, dict) else value
            if name.startswith("_") or not isinstance(value, (list, tuple, dict)):
                continue
            if any(isinstance(thing, (nn.Module, nn.Parameter)) and id(thing) not in known for thing in held):
                yield f"{path}.{name}" if path else name


def check_same_model(model: nn.Module) -> None:
    """Raise if the ranks' models differ: DDP would average gradients of different parameters, or wait for ever."""
    mine = [(name, tuple(p.shape), str(p.dtype), p.requires_grad) for name, p in model.named_parameters()]
    everyone = group.gathered(mine, "train.wrap()")
    for rank, theirs in enumerate(everyone):
        if theirs != everyone[0]:
            raise _different(rank, theirs, everyone[0])


def matching_modules(model: nn.Module, patterns: Iterable[str]) -> list[str]:
    """Names of the matching modules, without those inside another match. A ModuleList never matches, because it is never called."""
    names = [name for name, module in model.named_modules() if name and getattr(type(module), "forward", None) is not nn.Module.forward]
    matches: set[str] = set()
    for pattern in patterns:
        if not (more := [name for name in names if fnmatch(name, pattern)]):
            raise UsageError(f"no module is called {pattern!r}", why=f"the model's modules: {listed(names) or 'it has no parts'}")
        matches.update(more)
    found: list[str] = []
    for name in names:  # outer modules come first
        if name in matches and not any(name.startswith(f"{other}.") for other in found):
            found.append(name)
    return found


def _different(rank: int, theirs: list[Any], ours: list[Any]) -> TrainError:
    for its, first in zip(theirs, ours):
        if its != first:
            return train_error("RW216", f"rank {rank} has {its} where rank 0 has {first}", rank)
    return train_error("RW216", f"rank {rank} has {len(theirs)} parameters, rank 0 has {len(ours)}", rank)


def _over_all_ranks(seen: DryRun) -> DryRun:
    """What any rank saw: a parameter that is unused on one rank must be searched for on all ranks."""
    everyone = group.gathered(seen)
    unused = dict.fromkeys(name for one in everyone for name in one.unused)
    return DryRun(tuple(unused), tuple(dict.fromkeys(name for one in everyone for name in one.repeated)))


def _recompute(module: nn.Module) -> None:
    """Replace the instance's `forward`, which changes no name."""
    module.forward = partial(checkpoint, module.forward, use_reentrant=False)


def _compiled(model: nn.Module, options: bool | dict[str, Any]) -> nn.Module:
    """Compile the model in place and before DDP: it becomes one graph, and no checkpoint gets `_orig_mod.`."""
    if options is not False:
        chosen = options if isinstance(options, dict) else {}
        if type(model).forward.__module__.startswith("torch.nn."):
            model._compiled_call_impl = torch.compile(_own_frame(model), **chosen)
        else:
            model.compile(**chosen)
    return model


def _own_frame(model: nn.Module) -> Callable[..., Any]:
    """The model's call as a function of ours: torch compiles no frame of its own files that it meets first, and does not say so."""
    call: Callable[..., Any] = model._call_impl

    def forward(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    forward.__code__ = forward.__code__.replace()  # torch counts recompilations by code object, which two models must not share
    return forward
