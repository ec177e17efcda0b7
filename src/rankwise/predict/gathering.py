"""`rankwise.gather_predictions`: the outputs of all ranks of a process group, each dataset row once, in dataset order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from rankwise.predict.workspace import PredictError


def gather_predictions(
    outputs: torch.Tensor | dict[str, torch.Tensor], length: int, indices: Sequence[int] | torch.Tensor | None = None, group: Any = None
) -> Any:
    """All `length` rows, on every rank, in the order of the dataset; rows that a sampler repeated to come out even are dropped.

    `outputs` are this rank's rows in the order it saw them. `indices` says which dataset row each of them is; without it they
    are those of a DistributedSampler with shuffle=False: rank, rank + world_size, … Ranks may have different numbers of rows.
    """
    if isinstance(outputs, dict):
        return {name: gather_predictions(tensor, length, indices, group) for name, tensor in sorted(outputs.items())}
    rank, world_size = (dist.get_rank(group), dist.get_world_size(group)) if dist.is_initialized() else (0, 1)
    own = torch.arange(len(outputs)) * world_size + rank if indices is None else torch.as_tensor(indices, dtype=torch.int64).cpu()
    if len(own) != len(outputs):
        raise PredictError("RW841", f"rank {rank} has {len(outputs)} outputs and {len(own)} indices")
    all_rows = _all_rows(outputs, group, world_size)
    all_indices = torch.cat(_all_rows(own.to(outputs.device), group, world_size))
    return _in_order(torch.cat(all_rows), all_indices, length)


def _all_rows(rows: torch.Tensor, group: Any, world_size: int) -> list[torch.Tensor]:
    """Every rank's rows. The collectives want equal sizes, so all are filled up to the longest and cut again."""
    if world_size == 1:
        return [rows]
    sizes = [torch.zeros(1, dtype=torch.int64, device=rows.device) for _ in range(world_size)]
    dist.all_gather(sizes, torch.tensor([len(rows)], dtype=torch.int64, device=rows.device), group=group)
    shape, dtype = _row_of_all(rows, sizes, group, world_size)
    filled = torch.zeros((max(int(size) for size in sizes), *shape), dtype=dtype, device=rows.device)
    if len(rows):
        filled[: len(rows)] = rows
    gathered = [torch.zeros_like(filled) for _ in range(world_size)]
    dist.all_gather(gathered, filled, group=group)
    return [part[: int(size)] for part, size in zip(gathered, sizes)]


def _row_of_all(rows: torch.Tensor, sizes: list[torch.Tensor], group: Any, world_size: int) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of one row. A rank without rows cannot know them, and a rank with others would hang the rest."""
    kinds: list[Any] = [None] * world_size
    dist.all_gather_object(kinds, (tuple(rows.shape[1:]), rows.dtype), group=group)
    known = dict.fromkeys(kind for kind, size in zip(kinds, sizes) if int(size))
    if len(known) > 1:
        raise PredictError("RW841", f"the ranks' outputs differ: {', '.join(f'{dtype}{list(shape)}' for shape, dtype in known)}")
    shape, dtype = next(iter(known), kinds[0])
    return shape, dtype


def _in_order(rows: torch.Tensor, indices: torch.Tensor, length: int) -> torch.Tensor:
    inside = indices < length  # a sampler that fills up by wrapping around numbers its repeats beyond the end
    rows, indices = rows[inside], indices[inside]
    found = torch.zeros(length, dtype=torch.bool, device=rows.device)
    found[indices] = True
    if not bool(found.all()):
        missing = (~found).nonzero().flatten()
        shown = ", ".join(map(str, missing[:8].tolist()))
        raise PredictError("RW841", f"{len(missing)} of {length} rows are missing: {shown}", why="no rank has predicted them")
    ordered = torch.empty((length, *rows.shape[1:]), dtype=rows.dtype, device=rows.device)
    ordered[indices.flip(0)] = rows.flip(0)  # of repeated rows the first one counts
    return ordered
