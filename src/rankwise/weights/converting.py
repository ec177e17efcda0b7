"""Writes a checkpoint as plain safetensors: names without wrappers, each tensor once, compared after writing."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from rankwise.errors import UsageError
from rankwise.weights.checkpoint import open_checkpoint
from rankwise.weights.choosing import DEQUANTIZE, is_scale, with_key
from rankwise.weights.danger import check_harmless
from rankwise.weights.parameter_names import WRAPPERS, in_whole_parts, notes_by_own_names, outer_wrappers, wrappers_in
from rankwise.weights.safetensors_file import NOTES_KEY
from rankwise.weights.sharing import same_bits
from rankwise.weights.state_dicts import StateDict, find_state_dicts
from rankwise.weights.tensor_records import ITEM_SIZES, CheckpointError, TensorRecord
from rankwise.weights.tensors import TensorReader, begin_again_if_replaced, check_range, torch_dtype
from rankwise.weights.writing import write_safetensors

_MAX_GROWTH = 16  # an expanded tensor is written out in full; more growth than this is not on purpose


@dataclass(frozen=True)
class Converted:
    """The result. `read_s` and `written_read_s` are the seconds it takes to read all tensors from the checkpoint and from the output."""

    output: str
    tensors: int
    nbytes: int
    removed_prefixes: tuple[str, ...]
    same_tensor: dict[str, str]
    read_s: float
    written_read_s: float


@begin_again_if_replaced
def convert_to_safetensors(
    path: Path,
    output: Path,
    key: str | None = None,
    prefix: str | None = None,
    dtype: str | None = None,
    tensors_only: bool = False,
    check: Callable[[Path], None] = lambda written: None,
) -> Converted:
    """Write the weights of `path` to `output`. The file gets that name only after every tensor was read back and compared, and `check` has
    not raised."""
    content = open_checkpoint(path)
    if output.exists() and any(output.samefile(file) for file in content.files):
        raise UsageError(f"{output} is the checkpoint, or a part of it, and would be replaced", next=("give another name",))
    check_harmless(content, path, tensors_only)
    state = _pick(path, find_state_dicts(content), key)
    names = plain_names(state, in_whole_parts(prefix))
    _check_growth(path, state.tensors, sum(file.stat().st_size for file in content.files))
    kept, same = _each_once(names, state.tensors)
    if dtype is not None and not dtype.startswith("float8") and any(map(is_scale, kept.values())):
        _check_no_float8(path, kept, state.tensors)
    reader = TensorReader()
    for theirs in kept.values():
        reader.check(theirs, state.tensors[theirs])
    plan = {ours: (_dtype(state.tensors[theirs], dtype), state.tensors[theirs].shape) for ours, theirs in kept.items()}

    def read(ours: str) -> torch.Tensor:
        tensor = reader.read(kept[ours], state.tensors[kept[ours]])
        check_range(kept[ours], tensor, torch_dtype(plan[ours][0]))
        return tensor

    notes = notes_by_own_names(names, state.notes)
    is_noted = any(about != {"version": 1} for about in notes.values())  # 1 is the version of every module that says nothing
    seconds: list[float] = []

    def compare_and_check(written: Path) -> None:
        seconds.extend(_compare(written, output, kept, state.tensors))
        check(written)

    write_safetensors(output, plan, read, same | ({NOTES_KEY: json.dumps(notes)} if is_noted else {}), compare_and_check)
    nbytes = sum(math.prod(shape) * ITEM_SIZES[kind] for kind, shape in plan.values())
    return Converted(str(output), len(plan), nbytes, tuple(wrappers_in(kept.values())), same, *seconds)


def plain_names(state: StateDict, prefix: str | None) -> dict[str, str]:
    """The plain names, each with its name in the checkpoint. Wrappers in front of all names are removed, and torch's marks at any depth.

    A `module` in the middle of a name stays: it may be an attribute of the model, which is not known here.
    """
    names = [name for name in state.tensors if name != "n_averaged"]
    outer = outer_wrappers(names)
    found: dict[str, str] = {}
    for name in names:
        plain = ".".join(part for part in name.removeprefix(outer).split(".") if part == "module" or part not in WRAPPERS)
        if prefix is not None and not plain.startswith(prefix):
            continue
        if (other := found.setdefault(plain[len(prefix or "") :], name)) != name:
            raise CheckpointError("RW734", f"{other} and {name} are both {plain} once wrappers are taken off")
    if not found:
        raise CheckpointError("RW735", f"no name begins with {prefix!r}", why=f"they begin like {', '.join(names[:3])}")
    return found


def _pick(path: Path, states: list[StateDict], key: str | None) -> StateDict:
    if key is not None:
        return with_key(path, states, key)[0]
    weights = [state for state in states if not state.is_for_training]
    if not weights:
        raise CheckpointError("RW735", f"{path} holds no weights")
    first = weights[0]
    apart = [state for state in weights[1:] if not (state.is_around(first) or first.is_around(state) or state.is_averaged)]
    others = [state for state in apart if not state.is_same_as(first) and not any(other.is_around(state) for other in apart)]
    if others:
        names = ", ".join(f"--key {state.label}" for state in (first, *others[:8]))
        raise CheckpointError("RW735", f"{path} holds several sets of weights", next=(f"give one of {names}",))
    if first.doubled:
        raise CheckpointError("RW734", f"two tensors in {path} are called {first.doubled[0]}")
    return first


def _each_once(names: Mapping[str, str], tensors: Mapping[str, TensorRecord]) -> tuple[dict[str, str], dict[str, str]]:
    """The names to write, and further names of written tensors; safetensors holds each tensor once."""
    kept: dict[str, str] = {}
    same: dict[str, str] = {}
    first: dict[object, str] = {}
    for ours, theirs in names.items():
        if (written := first.setdefault(tensors[theirs].place or theirs, ours)) == ours:
            kept[ours] = theirs
        else:
            same[ours] = written
    return kept, same


def _check_growth(path: Path, tensors: Mapping[str, TensorRecord], size: int) -> None:
    total = sum(record.nbytes for record in tensors.values())
    if total > _MAX_GROWTH * size:
        raise CheckpointError(
            "RW732", f"{path} declares {total:,} bytes of weights in a file of {size:,}", why="its tensors repeat the same bytes"
        )


def _check_no_float8(path: Path, kept: Mapping[str, str], tensors: Mapping[str, TensorRecord]) -> None:
    """Beside scales, whose numbers nobody applies here."""
    if narrow := next((theirs for theirs in kept.values() if tensors[theirs].dtype.startswith("float8")), None):
        raise CheckpointError("RW734", f"{narrow} is {tensors[narrow].dtype} in {path}, and has a scale beside it", next=(DEQUANTIZE,))


def _dtype(record: TensorRecord, wanted: str | None) -> str:
    return wanted if wanted is not None and record.dtype.startswith(("float", "bfloat")) else record.dtype


def _compare(file: Path, output: Path, kept: Mapping[str, str], tensors: Mapping[str, TensorRecord]) -> tuple[float, float]:
    """Compare every tensor of both files bit by bit; returns the seconds each file took to read. `file` will become `output`."""
    written = open_checkpoint(file).tree
    before, after = TensorReader(verify=False), TensorReader()
    seconds = [0.0, 0.0]
    for ours, theirs in kept.items():
        started = time.perf_counter()
        original = before.read(theirs, tensors[theirs])
        between = time.perf_counter()
        copy = after.read(ours, written[ours])
        seconds[0] += between - started
        seconds[1] += time.perf_counter() - between
        if not same_bits(original.to(copy.dtype), copy):
            raise CheckpointError(
                "RW739", f"{ours} is not in {output} what it is in the checkpoint", why="the disk did not keep what was written"
            )
    return seconds[0], seconds[1]
