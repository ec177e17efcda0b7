"""Checkpoints laid out as DeepSpeed lays them out, without DeepSpeed: what 0.19.8 writes with ZeRO on CPU ranks, name by name."""

from __future__ import annotations

import enum
import math
import sys
import types
from pathlib import Path
from typing import Any

import torch


def write_zero(folder: Path, state: dict[str, torch.Tensor], stage: int, ranks: int, *, groups: list[list[str]], **facts: Any) -> Path:
    """`state` as so many ranks leave it; what is in no group is frozen or a buffer (`buffers`), `shared` names stand for another."""
    step = folder / "global_step3"
    step.mkdir(parents=True)
    (folder / "latest").write_text("global_step3")
    buffers, shared = list(facts.get("buffers", ())), dict(facts.get("shared", {}))
    frozen = [name for name in state if name not in (*buffers, *shared, *(name for group in groups for name in group))]
    shapes = [{name: state[name].shape for name in group} for group in groups]
    for rank in range(ranks):
        module = dict(state) if stage < 3 else {name: state[name] if name in buffers else torch.empty(0) for name in state}
        fragments = {name: _share(state[name], rank, ranks) if stage == 3 else state[name] for name in frozen}
        model = {"module": module, "buffer_names": buffers, "param_shapes": shapes, "shared_params": shared, "ds_version": "0.19.8"}
        model |= {"frozen_param_shapes": {name: state[name].shape for name in frozen}, "frozen_param_fragments": fragments}
        if stage == 3 or rank == 0:
            name = f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" if stage == 3 else "mp_rank_00_model_states.pt"
            torch.save(model, step / name)
        _save(step / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", _pieces(state, groups, stage, rank, ranks, facts.get("step", 3)))
    return folder


def _pieces(state: dict[str, torch.Tensor], groups: list[list[str]], stage: int, rank: int, ranks: int, step: Any) -> dict[str, Any]:
    if stage == 3:
        flat = [torch.cat([_share(state[name], rank, ranks) for name in group]) for group in groups]
        return {
            "zero_stage": stage,
            "partition_count": ranks,
            "fp32_flat_groups": flat,
            "optimizer_state_dict": {"state": {0: {"step": step}}},
        }
    mine, slices = [], []
    for group in groups:
        row = torch.cat([state[name].reshape(-1) for name in group])
        row = torch.cat([row, torch.zeros(-len(row) % (2 * ranks))])
        mine.append(row.chunk(ranks)[rank].clone())
        slices.append(_slices(state, group, len(row) // ranks, rank))
    return {
        "zero_stage": stage, "partition_count": [ranks] * len(groups), "single_partition_of_fp32_groups": mine,
        "param_alignment_paddings": [[0] * len(group) for group in groups], "param_slice_mappings": slices,
        "base_optimizer_state": {"state": {0: {"step": step, "exp_avg": mine[0] * 0}}, "param_groups": []},
    }  # fmt: skip


def _slices(state: dict[str, torch.Tensor], group: list[str], size: int, rank: int) -> dict[str, dict[str, int]]:
    found, at = {}, 0
    for name in group:
        first, last = max(at, rank * size), min(at + state[name].numel(), (rank + 1) * size)
        if first < last:
            found[name] = {"start": first - rank * size, "numel": last - first}
        at += state[name].numel()
    return found


def _share(tensor: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    size = math.ceil(tensor.numel() / ranks)
    padded = torch.cat([tensor.reshape(-1), torch.full((size * ranks - tensor.numel(),), 99.0)])
    return padded[rank * size : (rank + 1) * size].clone()


def _save(path: Path, state: dict[str, Any]) -> None:
    """With DeepSpeed's own classes in it, which are there only while it is written."""
    names = ("deepspeed", "deepspeed.runtime", "deepspeed.runtime.zero", "deepspeed.runtime.zero.config", "deepspeed.utils")
    modules = {name: types.ModuleType(name) for name in (*names, "deepspeed.utils.tensor_fragment")}
    stage_enum = enum.IntEnum("ZeroStageEnum", {"one": 1, "two": 2, "three": 3}, module="deepspeed.runtime.zero.config")
    address = type("fragment_address", (), {"__module__": "deepspeed.utils.tensor_fragment"})
    modules["deepspeed.runtime.zero.config"].ZeroStageEnum = stage_enum  # type: ignore[attr-defined]
    modules["deepspeed.utils.tensor_fragment"].fragment_address = address  # type: ignore[attr-defined]
    state["zero_stage"] = stage_enum(state["zero_stage"])
    for slices in state.get("param_slice_mappings", ()):
        for name, facts in slices.items():
            slices[name] = address()
            vars(slices[name]).update(facts)
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        torch.save({"optimizer_state_dict": state, "ds_version": "0.19.8"}, path)
    finally:
        for name, module in before.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module
