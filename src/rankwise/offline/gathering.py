"""`rankwise.gather_predictions`: the outputs of all ranks of a process group, each dataset row once, in dataset order."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from rankwise.offline.workspace import PredictError


def gather_predictions(
    outputs: torch.Tensor | dict[str, torch.Tensor], length: int, indices: Sequence[int] | torch.Tensor | None = None, group: Any = None
) -> Any:
    """All `length` rows, on every rank, in the order of the dataset; rows that a sampler repeated to come out even are dropped.

    `outputs` are this rank's rows in the order it saw them. `indices` says which dataset row each of them is; without it they
    are those of a DistributedSampler with shuffle=False: rank, rank + world_size, … Ranks may have different numbers of rows.
    """
    rank, world_size = (dist.get_rank(group), dist.get_world_size(group)) if dist.is_initialized() else (0, 1)
    if isinstance(outputs, dict):
        names = sorted(outputs, key=repr)  # names may be of any type
        _check_names(names, outputs, group, world_size)
        return {name: gather_predictions(outputs[name], length, indices, group) for name in names}
    if why := _why_unusable(outputs, indices):
        _told_by_all(why, None, group, world_size)
    own = _as_indices(indices)
    kinds = _kinds(outputs, own, length, group, world_size)
    shape, dtype = _common_row(kinds)
    sizes = [kind.rows for kind in kinds]
    dealt = [torch.arange(size) * world_size + place for place, size in enumerate(sizes)]  # as a DistributedSampler deals them
    rows = _all_rows(outputs, sizes, shape, dtype, group)
    if all(kind.indices < 0 for kind in kinds):
        return _in_order(rows, torch.cat(dealt), length)
    mine = (dealt[rank] if own is None else own).to(outputs.device)  # NCCL needs them there as well
    return _in_order(rows, _all_rows(mine, sizes, (), torch.int64, group).cpu(), length)


class _Kind(NamedTuple):
    """What one rank has. `indices` is -1 if none were given: then its rows are those of a DistributedSampler. `rows` is -1 for a scalar."""

    length: int
    rows: int
    indices: int
    dtype: torch.dtype
    shape: tuple[int, ...]


def _check_names(names: list[str], outputs: dict[str, torch.Tensor], group: Any, world_size: int) -> None:
    """Raise on all ranks if their names differ, because each name is a collective of its own."""
    found = _told_by_all(names, next(iter(outputs.values()), None), group, world_size)
    if differing := [rank for rank, theirs in enumerate(found) if theirs != found[0]]:
        summary = f"rank {differing[0]} has other outputs than rank 0; here they are {', '.join(map(str, names)) or 'none'}"
        raise PredictError("RW841", summary, next=("return the same names on every rank, with no rows where there are none",))


def _why_unusable(outputs: Any, indices: Any) -> str:
    if not isinstance(outputs, torch.Tensor) or outputs.layout != torch.strided:
        what = "sparse tensor" if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        return f"a {what} as outputs, where a tensor or a dictionary of tensors is wanted"
    try:
        _as_indices(indices)
    except (TypeError, ValueError, RuntimeError) as error:
        return f"indices that are not whole numbers: {error}"
    return ""


def _as_indices(indices: Sequence[int] | torch.Tensor | None) -> torch.Tensor | None:
    return None if indices is None else torch.as_tensor(indices, dtype=torch.int64).cpu().reshape(-1)


def _kinds(outputs: torch.Tensor, own: torch.Tensor | None, length: int, group: Any, world_size: int) -> list[_Kind]:
    """What all ranks have, known to all before the first row is sent: a rank that raised alone would leave the others waiting."""
    rows, indices = len(outputs) if outputs.dim() else -1, -1 if own is None else len(own)
    found = _told_by_all(_Kind(length, rows, indices, outputs.dtype, tuple(outputs.shape[1:])), outputs, group, world_size)
    if other := next((rank for rank, kind in enumerate(found) if kind.length != found[0].length), 0):
        summary = f"rank {other} was given a length of {found[other].length}, rank 0 one of {found[0].length}"
        raise PredictError("RW841", summary, next=("give the length of the whole dataset on every rank",))
    most = -(-length // world_size)
    for rank, kind in enumerate(found):
        if kind.rows < 0:
            raise PredictError("RW841", f"the outputs of rank {rank} are not rows: a first dimension with one entry per row is wanted")
        if kind.indices not in (-1, kind.rows):
            raise PredictError("RW841", f"rank {rank} has {kind.rows} outputs and {kind.indices} indices")
        if kind.indices < 0 and kind.rows > most:
            summary = f"rank {rank} has {kind.rows} outputs, a DistributedSampler would give it {most} of {length} rows at most"
            steps = ("give the DataLoader sampler=DistributedSampler(dataset, shuffle=False)", "or say with indices= which rows they are")
            raise PredictError("RW841", summary, why="perhaps every rank went through the whole dataset", next=steps)
    return found


def _told_by_all(mine: Any, outputs: Any, group: Any, world_size: int) -> list[Any]:
    """Exchange a fact about each rank: its names, its `_Kind`, or a text that says what cannot be used, which raises on all ranks. NCCL
    sends through the current GPU, which may not be the one that the outputs are on."""
    found = [mine] * world_size
    if world_size > 1:
        with torch.cuda.device(outputs.device) if getattr(outputs, "is_cuda", False) else nullcontext():
            dist.all_gather_object(found, mine, group=group)
    for rank, theirs in enumerate(found):
        if isinstance(theirs, str):
            raise PredictError("RW841", f"rank {rank} has {theirs}")
        if type(theirs) is not type(found[0]):
            what = ("a tensor", "a dictionary") if isinstance(theirs, _Kind) else ("a dictionary", "a tensor")
            raise PredictError("RW841", f"rank {rank} has {what[0]}, rank 0 {what[1]}", next=("return the same kind on every rank",))
    return found


def _common_row(kinds: list[_Kind]) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of one row, from the ranks that have rows; raises if they differ."""
    known = dict.fromkeys((kind.shape, kind.dtype) for kind in kinds if kind.rows)
    if len(known) > 1:
        raise PredictError("RW841", f"the ranks' outputs differ: {', '.join(f'{dtype}{list(shape)}' for shape, dtype in known)}")
    return next(iter(known), (kinds[0].shape, kinds[0].dtype))


def _all_rows(rows: torch.Tensor, sizes: list[int], shape: tuple[int, ...], dtype: torch.dtype, group: Any) -> torch.Tensor:
    """The rows of all ranks. The collective needs equal sizes, so each rank's rows are padded to the longest, and cut again."""
    if len(sizes) == 1:
        return rows
    filled = torch.zeros((max(sizes), *shape), dtype=dtype, device=rows.device)
    if len(rows):
        filled[: len(rows)] = rows.detach()
    gathered = [torch.empty_like(filled) for _ in sizes]
    dist.all_gather(list(map(_bytes, gathered)), _bytes(filled), group=group)
    return torch.cat([part[:size] for part, size in zip(gathered, sizes)])


def _bytes(rows: torch.Tensor) -> torch.Tensor:
    """The same memory as bytes, because gloo does not know every dtype."""
    return rows.reshape(-1).view(torch.uint8)


def _in_order(rows: torch.Tensor, indices: torch.Tensor, length: int) -> torch.Tensor:
    if bool((indices < 0).any()):
        raise PredictError("RW841", f"there is no row {int(indices.min())}", next=("leave out rows that only fill up a batch",))
    inside = (indices < length).nonzero().flatten()  # a sampler that pads by wrapping around numbers its repeats beyond the end
    places = torch.full((length,), len(indices)).scatter_reduce(0, indices[inside], inside, "amin")  # the first of repeated rows counts
    if missing := (places == len(indices)).nonzero().flatten().tolist():
        shown = ", ".join(map(str, missing[:8]))
        raise PredictError("RW841", f"{len(missing)} of {length} rows are missing: {shown}", why="no rank has predicted them")
    return rows[places.to(rows.device)]
