"""Checkpoints whose weights all ranks write at once, with `torch.distributed.checkpoint`; they are committed like all others."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint.state_dict_loader as dcp_loader
import torch.distributed.checkpoint.state_dict_saver as dcp_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor

from rankwise.errors import TrainError
from rankwise.findings import Finding
from rankwise.train import committed, group
from rankwise.train.captured import find_names_misfit, misfit, plain_numbers, same_weights
from rankwise.train.committed import damaged, unsafe
from rankwise.train.distcp import METADATA, CheckpointReader, Planner, Refused, read_metadata
from rankwise.train.errors import train_error
from rankwise.train.group import rank_zero
from rankwise.train.wrapping import unwrap

SHARDS = "shards"


def save_sharded(folder: Path, step: int, things: dict[str, Any], rest: dict[str, Any], keep: int) -> Finding | None:
    """Save on all ranks; rank 0 commits when all of them have written."""
    state = _collected(things)
    partial = rank_zero(lambda: committed.begin(folder, step))
    if partial is None:
        return None if _has_same_weights(committed.path_of(folder, step), things) else committed.other_weights(step)
    if not isinstance(partial, Path):
        return partial
    problem: OSError | None = None
    lines: dict[str, Any] = {}
    try:
        dcp_saver.save(state, checkpoint_id=partial / SHARDS)
        # each rank hashes its own files, so that no rank reads everything; files for all ranks are rank 0's
        own = [path for path in (partial / SHARDS).iterdir() if _writer_of(path) == group.rank()]
        lines = {f"{SHARDS}/{path.name}": committed.hash_file(path) for path in own}
    except (Exception, CheckpointException) as error:
        problem = _as_os_error(error)
    everyone = group.gathered((problem, lines))
    if problems := [said for said, _ in everyone if said]:
        return rank_zero(lambda: committed.abandon(partial, step, problems[0]))
    shards = {name: line for _, theirs in everyone for name, line in theirs.items()}
    return rank_zero(lambda: committed.finish(partial, step, rest, keep, shards))


def _collected(things: dict[str, Any]) -> dict[str, Any]:
    """What is to be saved. An exception is raised here, and told to the other ranks, which would otherwise wait for this one."""
    state, failure = {}, None
    try:
        state = plain_numbers(_weights(things, is_saved=True))
    except Exception as error:
        failure = error
    everyone = group.gathered(failure and _said(failure))
    if failure is not None:
        raise failure
    for rank, said in enumerate(everyone):
        if said:
            raise train_error("RW710", f"rank {rank} could not collect what is to be saved: {said}", rank)
    return state


def load_sharded(path: Path, things: dict[str, Any]) -> None:
    """Every rank reads its part. What is wrong with the folder is found before that, and raised by all ranks."""
    state = _weights(things)
    metadata = _read_alike(path / SHARDS, state)
    _leave_out_never_stepped(state, metadata)
    try:
        dcp_loader.load(state, storage_reader=CheckpointReader(path / SHARDS, metadata), planner=Planner())
    except CheckpointException as error:
        failed = [failure for failure, _ in error.failures.values()]
        refused = [failure for failure in failed if isinstance(failure, Refused)]
        finding = unsafe(path / SHARDS, str(refused[0])) if refused else misfit(f"{path} does not fit: {_said(error)}")
        raise TrainError(finding) from None
    try:
        set_state_dict(
            things["model"],
            things.get("optimizer", ()),
            model_state_dict=state["model"],
            optim_state_dict=state.get("optimizer", {}),
            options=StateDictOptions(strict=False),  # for the optimizer's state; the model's names were compared before
        )
    except ValueError as error:  # parameter groups that differ, on all ranks in the same way
        raise TrainError(misfit(f"{path} does not fit: {_said(error)}")) from None


def _has_same_weights(path: Path, things: dict[str, Any]) -> bool:
    """Whether the checkpoint that is there has the weights that this one would have; all ranks return the same."""
    own = {name: value for name, value in _weights(things, is_saved=True)["model"].items() if isinstance(value, torch.Tensor)}
    there = {name: value.detach().clone() for name, value in own.items()}
    try:
        metadata = _read_alike(path / SHARDS, {"model": own})
        dcp_loader.load({"model": there}, storage_reader=CheckpointReader(path / SHARDS, metadata), planner=Planner())
    except (TrainError, CheckpointException):  # it is of another model, or not readable
        return False
    return all(group.gathered(same_weights(_locals(own), _locals(there), unwrap(things["model"]))))


def _locals(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """This rank's parts of the tensors."""
    return {name: (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach() for name, tensor in tensors.items()}


def _read_alike(folder: Path, state: dict[str, Any]) -> Metadata:
    """The metadata, if it is harmless and fits on every rank; raises on all ranks otherwise."""
    finding: Finding | None
    try:
        metadata = read_metadata(folder)
        finding = _find_misfit(folder, state, metadata)
    except Refused as refused:
        finding = unsafe(folder / METADATA, str(refused))
    except (OSError, ValueError) as error:
        finding = damaged(folder, str(error))
    if found := [one for one in group.gathered(finding) if one]:
        raise TrainError(found[0])
    return metadata


def _find_misfit(folder: Path, state: dict[str, Any], metadata: Metadata) -> Finding | None:
    """A finding if the folder does not fit: torch would silently leave out what the model has no place for."""
    names = metadata.state_dict_metadata
    if absent := [name for name in state if not any(saved.startswith(f"{name}.") for saved in names)]:
        return misfit(f"{folder} holds no {absent[0]}")
    own = {f"model.{name}": value for name, value in state["model"].items() if isinstance(value, torch.Tensor)}
    others = tuple(f"model.{name}" for name in state["model"] if f"model.{name}" not in own)  # extra state (get_extra_state), of any shape
    tensors = {name: entry.size for name, entry in names.items() if isinstance(entry, TensorStorageMetadata)}
    shapes = {name: size for name, size in tensors.items() if name.startswith("model.") and not name.startswith(others)}
    return find_names_misfit(own, shapes, folder)


def _said(error: BaseException) -> str:
    """One line about an error. DCP gathers the failures of all ranks in one exception, with their tracebacks."""
    if isinstance(error, CheckpointException):
        error = next(failure for failure, _ in error.failures.values())
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _as_os_error(error: BaseException) -> OSError:
    """An OSError with the error number that helps most, if any rank's failure has one."""
    failed = [failure for failure, _ in error.failures.values()] if isinstance(error, CheckpointException) else [error]
    numbered = [failure for failure in failed if isinstance(failure, OSError) and failure.errno]
    return OSError(numbered[0].errno, numbered[0].strerror) if numbered else OSError(_said(error))


def _leave_out_never_stepped(state: dict[str, Any], metadata: Metadata) -> None:
    """Leave out parameters that had no gradient yet: they have no state in the checkpoint, and none after loading it."""
    saved = {begin for name in metadata.state_dict_metadata for begin in accumulate(name.split("."), "{}.{}".format)}
    for name in [name for name in state.get("optimizer", {}).get("state", {}) if f"optimizer.state.{name}" not in saved]:
        del state["optimizer"]["state"][name]


def _weights(things: dict[str, Any], *, is_saved: bool = False) -> dict[str, Any]:
    """Model and optimizer by the names of the plain model, so that the optimizer's state can be split over other ranks.

    torch steps an optimizer without state to make places to load into; that state must not be saved, nor trained on.
    """
    is_fresh = "optimizer" in things and not things["optimizer"].state
    model, optimizer = get_state_dict(things["model"], things.get("optimizer", ()))
    if is_fresh and is_saved:
        things["optimizer"].state.clear()
        optimizer = {**optimizer, "state": {}}
    return {"model": model, "optimizer": optimizer} if "optimizer" in things else {"model": model}


def _writer_of(path: Path) -> int:
    """The rank that wrote a file: `__3_0.distcp` is rank 3's; `.metadata` is rank 0's."""
    parts = path.name.split("_")
    return int(parts[2]) if len(parts) > 3 and parts[2].isdecimal() else 0
