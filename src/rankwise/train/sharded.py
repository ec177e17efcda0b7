"""Checkpoints whose weights all ranks write at once, with `torch.distributed.checkpoint`; committed like the others."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint.state_dict_loader as dcp_loader
import torch.distributed.checkpoint.state_dict_saver as dcp_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from rankwise.causes import load_cause
from rankwise.findings import Finding
from rankwise.train import committed, group
from rankwise.train.committed import STATE
from rankwise.train.rank_zero import rank_zero

SHARDS = "shards"


def save_sharded(folder: Path, step: int, things: dict[str, Any], rest: dict[str, Any], keep: int) -> Finding | None:
    """All ranks write; rank 0 commits when everybody has."""
    problem = ""
    partial = rank_zero(lambda: _begin(folder, step))
    if partial is None:
        return None
    if isinstance(partial, Path):
        try:
            dcp_saver.save(_weights(things), checkpoint_id=partial / SHARDS)
            # each rank its own files, so that no rank reads everything; what belongs to all of them is rank 0's
            own = [path for path in (partial / SHARDS).iterdir() if _writer_of(path) == group.rank()]
            lines = {f"{SHARDS}/{path.name}": committed.hash_file(path) for path in own}
        except Exception as error:  # dcp gathers what failed on any rank into one exception of its own
            problem, lines = f"{type(error).__name__}: {error}", {}
    else:
        problem, lines = str(partial), {}
    everyone = group.gathered((problem, lines))
    problems = [said for said, _ in everyone if said]
    files = {name: line for _, theirs in everyone for name, line in theirs.items()}
    return rank_zero(lambda: _finish(folder, step, problems, files, rest, keep))


def load_sharded(path: Path, things: dict[str, Any]) -> None:
    state = _weights(things)
    dcp_loader.load(state, checkpoint_id=path / SHARDS)
    set_state_dict(
        things["model"],
        things.get("optimizer", ()),
        model_state_dict=state["model"],
        optim_state_dict=state.get("optimizer", {}),
    )


def _weights(things: dict[str, Any]) -> dict[str, Any]:
    """Under the names the plain model has; the optimizer's state too goes by names, so that it can be cut anew."""
    model, optimizer = get_state_dict(things["model"], things.get("optimizer", ()))
    return {"model": model, "optimizer": optimizer} if "optimizer" in things else {"model": model}


def _begin(folder: Path, step: int) -> Path | str | None:
    """Where to write; None if this checkpoint is there already, or why nothing can be written."""
    try:
        return None if committed.is_whole(folder, step) else committed.begin(folder, step)
    except OSError as error:
        return str(error)


def _finish(folder: Path, step: int, problems: list[str], files: dict[str, Any], rest: dict[str, Any], keep: int) -> Finding | None:
    partial = folder / f".step-{step:08d}.partial"
    try:
        if problems:
            raise OSError(problems[0])
        files[STATE] = committed.write_file(partial / STATE, lambda file: torch.save(rest, file))
        committed.commit(partial, step, files, {"world_size": group.world_size()})
        committed.prune(folder, keep)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        return load_cause("RW707").finding(f"the checkpoint of step {step} could not be written: {error}", certain=True)
    return None


def _writer_of(path: Path) -> int:
    """`__3_0.distcp` was written by rank 3; `.metadata` by rank 0."""
    parts = path.name.split("_")
    return int(parts[2]) if len(parts) > 3 and parts[2].isdecimal() else 0
