"""Folders of DeepSpeed: `latest` names one of several steps; with ZeRO its weights lie in pieces in the files of all ranks.

Stage 1 and 2 cut each group of parameters, laid out flat, into one piece per rank. Stage 3 cuts each parameter into one piece per rank,
and a rank's pieces lie one behind the other. Either way these are the weights in float32, as the optimizer keeps them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from rankwise.weights.danger import DTENSOR, HARMLESS
from rankwise.weights.plain_files import beside, open_bytes, read_small
from rankwise.weights.tensor_records import (
    CheckpointError,
    Content,
    Damaged,
    TensorPiece,
    TensorRecord,
    Unbuilt,
    as_damage,
    contiguous,
    joined_content,
)
from rankwise.weights.torch_file import read_torch_zip
from rankwise.weights.zipped import open_archive

LATEST = "latest"
_STATES = re.compile(r"(?:bf16_)?(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_(model|optim)_states\.pt")
_MAX_NAME = 4096
# classes of DeepSpeed that hold numbers and nothing else
_HARMLESS = HARMLESS | DTENSOR | {
    "deepspeed.runtime.fp16.loss_scaler.LossScaler", "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum", "deepspeed.utils.tensor_fragment.fragment_address",
}  # fmt: skip


def is_deepspeed(folder: Path) -> bool:
    return (folder / LATEST).is_file() or bool(_state_files(folder))


def read_deepspeed(folder: Path) -> Content:
    """The weights of a folder with `latest`, or of one step's folder in it."""
    files = _state_files(folder)
    if not files and (folder / LATEST).is_file():
        tag = read_small(folder / LATEST, _MAX_NAME).decode(errors="replace").strip()
        if not tag.isprintable():  # a link to some other file, whose content must not be shown
            raise Damaged(f"{LATEST} does not hold the name of a step")
        folder = beside(folder, tag, LATEST, is_folder=True)
        files = _state_files(folder)
    _check_parallel(folder, files)
    models, optimizers = _read(files, "model"), _read(files, "optim")
    if not models:
        raise CheckpointError("RW733", f"{folder} is not a checkpoint: a folder of DeepSpeed without *_model_states.pt")
    module = models[0].tree.get("module")
    if not isinstance(module, dict):
        raise Damaged(f"{models[0].files[0].name} has no weights under 'module'")
    _check_one_step(models, optimizers)
    with as_damage("its states are not what DeepSpeed writes"):
        weights = _consolidated(models, optimizers, module) if optimizers else module
    stage = _stage(optimizers)
    return joined_content(f"DeepSpeed{f' ZeRO-{stage}' if stage else ''}", {"module": weights}, [*models, *optimizers])


def _state_files(folder: Path) -> dict[tuple[str, int, int], Path]:
    """Kind, rank and model-parallel rank of each file."""
    found: dict[tuple[str, int, int], Path] = {}
    for path in sorted(folder.glob("*_states.pt")):
        if match := _STATES.fullmatch(path.name):
            whose = match[3], int(match[1] or 0), int(match[2])
            if whose in found:
                why = "one of them is left from another training"
                raise CheckpointError("RW736", f"{found[whose].name} and {path.name} are of the same rank", why=why)
            found[whose] = path
    return found


def _check_parallel(folder: Path, files: dict[tuple[str, int, int], Path]) -> None:
    split = max((mp_rank for _, _, mp_rank in files), default=0) + 1
    if split > 1 or any(folder.glob("layer_*-model_states.pt")) or any(folder.glob("*expert_*_model_states.pt")):
        how = f"over {split} tensor-parallel ranks" if split > 1 else "by layers or experts"
        summary = f"{folder} is a checkpoint of DeepSpeed whose layers are split {how}"
        steps = ("have DeepSpeed join them where it was trained: ds_to_universal.py, or save_16bit_model",)
        raise CheckpointError("RW740", summary, why="only pieces that ZeRO cut are joined here", next=steps)


def _read(files: dict[tuple[str, int, int], Path], kind: str) -> list[Content]:
    """The files of one kind in the order of ranks."""
    wanted = sorted((rank, path) for (its_kind, rank, _), path in files.items() if its_kind == kind)
    if [rank for rank, _ in wanted] != list(range(len(wanted))):
        have = {rank for rank, _ in wanted}
        lost = min(set(range(max(have) + 1)) - have)
        raise CheckpointError("RW736", f"the {kind} states of rank {lost} are missing", why=f"{len(wanted)} ranks are there")
    contents = []
    for _, path in wanted:
        try:
            contents.append(read_torch_zip(path, open_archive(path, open_bytes(path)), _HARMLESS))
        except Damaged as error:
            raise Damaged(f"{path.name}: {error}") from error
    return contents


def _check_one_step(models: list[Content], optimizers: list[Content]) -> None:
    """Raise if files are of different steps: a save that ended half-way over an older one of the same name leaves files of both."""
    steps: dict[Any, tuple[Any, str]] = {}
    for content in (*models, *optimizers):
        name = content.files[0].name
        for counter, step in _steps_in(content.tree):
            known, where = steps.setdefault(counter, (step, name))
            if known != step:
                why = f"{counter}: {known} and {step}"
                raise CheckpointError("RW736", f"{where} and {name} are of different steps", why=why, next=("use an earlier checkpoint",))


def _steps_in(tree: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Name and value of each counter that is the same on all ranks. For a counter that is a tensor, the value is its checksum."""
    if isinstance(count := tree.get("global_steps"), int):
        yield "global_steps", count
    for key in ("base_optimizer_state", "optimizer_state_dict"):
        groups = _inside(tree, "optimizer_state_dict", key, "state")
        for group, facts in groups.items() if isinstance(groups, dict) else ():
            step = _inside(facts, "step")
            if isinstance(step, TensorRecord) and step.storage is not None and step.storage.nbytes == step.nbytes:
                step = f"checksum {step.storage.crc}"
            if isinstance(step, (int, str)):
                yield f"the optimizer's step of group {group}", step


def _inside(tree: Any, *keys: str) -> Any:
    """The value under these keys of nested dictionaries; None if there is none."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _stage(optimizers: list[Content]) -> int:
    """The stage of ZeRO that the files name, or 0. Stages 1 and 2 are laid out alike."""
    declared = _inside(optimizers[0].tree, "optimizer_state_dict", "zero_stage") if optimizers else None
    value = declared.state[0] if isinstance(declared, Unbuilt) and declared.state else declared
    return value if isinstance(value, int) else 0


def _consolidated(models: list[Content], optimizers: list[Content], module: dict[str, Any]) -> dict[str, Any]:
    states: list[Any] = [content.tree.get("optimizer_state_dict") for content in optimizers]
    groups = models[0].tree.get("param_shapes")
    if not isinstance(groups, (list, tuple)) or not all(isinstance(state, dict) for state in states):
        raise Damaged("it does not say which parameters its pieces belong to (param_shapes)")
    count = _partition_count(states[0])
    if count is not None and count != len(states):
        raise CheckpointError("RW736", f"{count} ranks wrote the optimizer's states, {len(states)} files are there")
    is_stage_3 = "fp32_flat_groups" in states[0]
    pieces = [_flat_pieces(state["fp32_flat_groups" if is_stage_3 else "single_partition_of_fp32_groups"]) for state in states]
    weights = dict(_of_stage_3(groups, pieces)) if is_stage_3 else dict(_of_stage_2(groups, pieces, states))
    if is_stage_3:
        buffers = {name: module[name] for name in models[0].tree.get("buffer_names") or () if name in module}
        kept = {name: value for name, value in module.items() if not isinstance(value, TensorRecord)}
        found = {**kept, **buffers, **dict(_frozen(models)), **weights}
    else:  # there, frozen parameters are whole
        found = {**module, **weights}
    shared = models[0].tree.get("shared_params")
    pairs = shared.items() if isinstance(shared, dict) else shared or ()
    return {**found, **{name: found[same] for name, same in pairs if same in found}}


def _of_stage_2(groups: Any, pieces: list[list[TensorRecord]], states: list[Any]) -> Iterator[tuple[str, TensorRecord]]:
    """Each group is one flat row of all its parameters, cut into equal pieces."""
    paddings = states[0].get("param_alignment_paddings")
    for index, shapes in enumerate(groups):
        row = [rank[index] for rank in pieces]
        between = paddings[index] if isinstance(paddings, (list, tuple)) else [0] * len(shapes)
        at = 0
        for (name, shape), padding in zip(shapes.items(), between, strict=True):
            _check_place(name, states, index, at, math.prod(shape), row)
            yield name, _joined(_cut(name, row, at, math.prod(shape)), shape)
            at += math.prod(shape) + padding
        left = sum(piece.numel for piece in row) - at
        if not 0 <= left < 2 * len(row):  # padding, which makes all pieces alike and aligned
            raise Damaged(f"the pieces of group {index} have {left:,} numbers more than its parameters")


def _of_stage_3(groups: Any, pieces: list[list[TensorRecord]]) -> Iterator[tuple[str, TensorRecord]]:
    """Each parameter is cut into equal pieces, the last one filled up; the pieces of a rank's groups make one row."""
    ranks, at = len(pieces), 0
    for name, shape in ((name, shape) for shapes in groups for name, shape in shapes.items()):
        share = -(-math.prod(shape) // ranks)
        filled_up = [piece for row in pieces for piece in _cut(name, row, at, share)]
        yield name, _joined(_cut(name, filled_up, 0, math.prod(shape)), shape)
        at += share
    if any(sum(piece.numel for piece in row) != at for row in pieces):
        raise Damaged("the pieces of a rank have more or fewer numbers than its parts of the parameters")


def _frozen(models: list[Content]) -> Iterator[tuple[str, TensorRecord]]:
    """Parameters that are not trained: they are cut like the others, and have their own dtype."""
    for name, shape in (models[0].tree.get("frozen_param_shapes") or {}).items():
        parts = [_as_row(content.tree["frozen_param_fragments"][name]) for content in models]
        yield name, _joined(_cut(name, parts, 0, math.prod(shape)), shape)


def _check_place(name: str, states: list[Any], group: int, at: int, numel: int, row: list[TensorRecord]) -> None:
    """Newer files say where each parameter lies. If that is elsewhere (round-robin, another rank's file), wrong numbers would be read."""
    begin = 0
    for state, piece in zip(states, row):
        slices = state.get("param_slice_mappings")
        place = slices[group].get(name) if isinstance(slices, (list, tuple)) else None
        if isinstance(place, Unbuilt) and isinstance(place.state, dict):
            first, last = max(at, begin), min(at + numel, begin + piece.numel)
            if (begin + place.state["start"], place.state.get("numel", last - first)) != (first, last - first):
                noted = begin + place.state["start"]
                why = f"by its group {name} begins at {at:,}, by its own note at {noted:,}; round_robin_gradients does that"
                steps = ("mp_rank_00_model_states.pt in the step's folder has the weights whole: give that file",)
                raise CheckpointError("RW732", "the optimizer's files do not agree where the parameters lie in them", why=why, next=steps)
        begin += piece.numel


def _cut(name: str, row: list[TensorRecord], at: int, numel: int) -> list[TensorRecord]:
    """The pieces that hold `numel` numbers of a row of flat pieces, from `at` on."""
    found, begin = [], 0
    for piece in row:
        first, last = max(at, begin), min(at + numel, begin + piece.numel)
        if first < last:
            found.append(replace(piece, first=piece.first + first - begin, shape=(last - first,)))
        begin += piece.numel
    if sum(piece.numel for piece in found) != numel:
        raise Damaged(f"the pieces end before {name} does")
    return found


def _joined(pieces: list[TensorRecord], shape: Any) -> TensorRecord:
    """One tensor, whose elements are the elements of the pieces, one piece behind the other."""
    if len(pieces) == 1:
        return replace(pieces[0], shape=tuple(shape), strides=contiguous(tuple(shape)))
    ends = accumulate(piece.numel for piece in pieces)
    chunks = tuple(TensorPiece((end - piece.numel,), piece.shape, part=piece) for piece, end in zip(pieces, ends))
    return TensorRecord(pieces[0].dtype if pieces else "float32", tuple(shape), chunks=chunks)


def _flat_pieces(pieces: Any) -> list[TensorRecord]:
    return [_as_row(piece) for piece in (pieces if isinstance(pieces, (list, tuple)) else [pieces])]


def _as_row(piece: Any) -> TensorRecord:
    if not isinstance(piece, TensorRecord) or piece.unreadable or piece.strides != contiguous(piece.shape):
        raise Damaged("a piece of a parameter is not a flat row of numbers")
    return replace(piece, shape=(piece.numel,), strides=(1,))


def _partition_count(state: Any) -> int | None:
    count = state.get("partition_count")
    return max(count, default=None) if isinstance(count, (list, tuple)) else count if isinstance(count, int) else None
