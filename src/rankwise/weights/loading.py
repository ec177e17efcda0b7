"""`load_weights`: any checkpoint into a plain model, all of it or nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from rankwise.errors import UsageError
from rankwise.weights.checkpoint import open_checkpoint
from rankwise.weights.choosing import choose
from rankwise.weights.danger import check_harmless
from rankwise.weights.dcp import FORMAT as DCP_FORMAT
from rankwise.weights.filling import Target
from rankwise.weights.matching import Rules
from rankwise.weights.own_loading import OwnLoading
from rankwise.weights.parameter_names import in_whole_parts, wrappers_in
from rankwise.weights.state_dicts import find_state_dicts, looks_like
from rankwise.weights.tensors import TensorReader, begin_again_if_replaced


@dataclass(frozen=True)
class LoadedWeights:
    """What was loaded, and what was done to make it fit."""

    path: str
    looks_like: tuple[str, ...]
    key: str  # "" if the weights are at the top of the file
    loaded: int  # parameters and buffers, by name
    nbytes: int
    removed_prefixes: tuple[str, ...]
    left_alone: tuple[str, ...]  # named by allow_missing: these keep the model's own values
    ignored: tuple[str, ...]
    converted: dict[str, str]  # name: "float16 → float32"
    unchecked_bytes: int  # bytes without a compared checksum: a flipped bit in them cannot be seen
    also_found: tuple[str, ...]  # keys of other weights in the same file that would have fitted: "ema"


@begin_again_if_replaced
def load_weights(
    model: torch.nn.Module,
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    prefix: str | None = None,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    allow_missing: Sequence[str] = (),
    allow_unexpected: Sequence[str] = (),
    tensors_only: bool = False,
    verify: bool = True,
) -> LoadedWeights:
    """Put the checkpoint's weights into `model`, in place; no process group is needed and nothing in the file is executed.

    A model on the meta device gets new tensors; the tensors of other models are filled in place. Every
    parameter and buffer gets a value, or nothing is changed and a CheckpointError holds the finding. `key` chooses among
    several sets of weights ("ema"), `prefix` takes only what is below it ("model."), patterns in `allow_missing` and
    `allow_unexpected` name what may stay without a partner. `tensors_only` reads the tensors of a checkpoint that also holds
    objects of Python classes, which are left out.
    """
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"the model is a {type(model).__name__}, not a torch.nn.Module", next=("load_weights(model, path)",))
    if not isinstance(path, (str, os.PathLike)):
        raise UsageError(f"the checkpoint is a {type(path).__name__}, where a path is wanted", next=("load_weights(model, path)",))
    wanted, where = _dtype(dtype), _device(device)
    content = open_checkpoint(path)
    check_harmless(content, Path(path), tensors_only)
    target = Target(model, wanted, where)
    slots, reader = target.slots(), TensorReader(verify)
    states = find_state_dicts(content, own={part for name in slots for part in name.split(".")})
    if content.format == DCP_FORMAT:  # it keeps no versions: like torch, take its weights to be of the model's present ones
        states = [replace(state, notes=getattr(model.state_dict(), "_metadata", {})) for state in states]
    if target.has_extra_state:
        states = [state.with_extra_apart() for state in states]
    rules = Rules(in_whole_parts(prefix), _patterns(allow_missing), _patterns(allow_unexpected))
    own_fit = OwnLoading(model, slots, rules, reader).fit if target.loads_in_its_own_way else None
    choice = choose(Path(path), states, slots, rules, key, own_fit)
    converted = target.fill(choice, reader, str(path), rules)
    records = choice.state.tensors
    used = dict.fromkeys((choice.fit.pairs if choice.fit.handed is None else choice.fit.handed).values())
    return LoadedWeights(
        path=str(path),
        looks_like=tuple(looks_like(content, states)),
        key=choice.state.label,
        loaded=len(slots) - len(choice.fit.left_alone),
        nbytes=sum(records[theirs].nbytes for theirs in used),
        removed_prefixes=tuple(dict.fromkeys([*wrappers_in(used), *([choice.fit.removed] if choice.fit.removed else [])])),
        left_alone=choice.fit.left_alone,
        ignored=choice.fit.ignored,
        converted=converted,
        unchecked_bytes=sum(reader.unchecked_bytes(theirs, records[theirs]) for theirs in used),
        also_found=choice.also,
    )


def _dtype(wanted: torch.dtype | str | None) -> torch.dtype | None:
    dtype = getattr(torch, wanted, None) if isinstance(wanted, str) else wanted
    if wanted is not None and not isinstance(dtype, torch.dtype):
        raise UsageError(f"dtype={wanted!r} is not a dtype of torch", next=('dtype="bfloat16"',))
    return dtype


def _device(wanted: torch.device | str | None) -> torch.device | None:
    try:
        return torch.device(wanted) if wanted else None
    except RuntimeError as error:
        raise UsageError(f"device={wanted!r} is not a device of torch", next=('device="cuda"', 'device="cpu"')) from error


def _patterns(names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise UsageError(f"allow_missing and allow_unexpected take a list of patterns, not the text {names!r}", next=(f"[{names!r}]",))
    return tuple(names)


@begin_again_if_replaced
def verify_checkpoint(path: str | os.PathLike[str]) -> int:
    """The number of bytes that have a checksum and agree with it; raises CheckpointError at the first that does not."""
    reader = TensorReader()
    for state in find_state_dicts(open_checkpoint(path)):
        for name, record in state.tensors.items():
            if not record.unreadable:
                reader.check(name, record)
    return reader.verified_bytes
