"""`rankwise.gather_predictions`: the outputs of all ranks of a process group, each dataset row once, in dataset order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from rankwise.predict.workspace import PredictError

_DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)  # the same on all ranks
_MOST_DIMS = 12


def gather_predictions(
    outputs: torch.Tensor | dict[str, torch.Tensor], length: int, indices: Sequence[int] | torch.Tensor | None = None, group: Any = None
) -> Any:
    """All `length` rows, on every rank, in the order of the dataset; rows that a sampler repeated to come out even are dropped.

    `outputs` are this rank's rows in the order it saw them. `indices` says which dataset row each of them is; without it they
    are those of a DistributedSampler with shuffle=False: rank, rank + world_size, … Ranks may have different numbers of rows.
    """
    if isinstance(outputs, dict):
        return {name: gather_predictions(tensor, length, indices, group) for name, tensor in sorted(outputs.items())}
    own = None if indices is None else torch.as_tensor(indices, dtype=torch.int64).cpu()
    rank, world_size = (dist.get_rank(group), dist.get_world_size(group)) if dist.is_initialized() else (0, 1)
    kinds = _kinds(outputs, own, group, world_size)
    shape, dtype = _common_row(kinds)
    parts = _all_rows(outputs, [kind.rows for kind in kinds], shape, dtype, group, world_size)
    if all(kind.indices < 0 for kind in kinds):
        return _interleaved(parts, length)
    if own is None:
        own = torch.arange(len(outputs)) * world_size + rank
    all_indices = _all_rows(own.to(outputs.device), [kind.rows for kind in kinds], (), torch.int64, group, world_size)
    return _in_order(torch.cat(parts), torch.cat(all_indices), length)


class _Kind(NamedTuple):
    """What one rank has; -1 indices: those of a DistributedSampler."""

    rows: int
    indices: int
    dtype: int
    shape: tuple[int, ...]


def _kinds(outputs: torch.Tensor, own: torch.Tensor | None, group: Any, world_size: int) -> list[_Kind]:
    """All ranks know all of them before the first row travels: one that raised on its own would leave the others waiting."""
    row = outputs.shape[1:]
    if outputs.dim() == 0 or len(row) > _MOST_DIMS:
        raise PredictError("RW841", f"outputs of shape {list(outputs.shape)} are not rows")
    mine = [len(outputs), -1 if own is None else len(own), _DTYPES.index(outputs.dtype), len(row), *row]
    header = torch.tensor(mine + [0] * (_MOST_DIMS - len(row)), dtype=torch.int64, device=outputs.device)
    headers = [header]
    if world_size > 1:
        headers = [torch.empty_like(header) for _ in range(world_size)]
        dist.all_gather(headers, header, group=group)
    found = [_Kind(rows, indices, dtype, tuple(sizes[:dims])) for rows, indices, dtype, dims, *sizes in torch.stack(headers).tolist()]
    for rank, kind in enumerate(found):
        if kind.indices not in (-1, kind.rows):
            raise PredictError("RW841", f"rank {rank} has {kind.rows} outputs and {kind.indices} indices")
    return found


def _common_row(kinds: list[_Kind]) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of one row. A rank without rows cannot know them."""
    known = dict.fromkeys((kind.shape, _DTYPES[kind.dtype]) for kind in kinds if kind.rows)
    if len(known) > 1:
        raise PredictError("RW841", f"the ranks' outputs differ: {', '.join(f'{dtype}{list(shape)}' for shape, dtype in known)}")
    return next(iter(known), (kinds[0].shape, _DTYPES[kinds[0].dtype]))


def _all_rows(
    rows: torch.Tensor, sizes: list[int], shape: tuple[int, ...], dtype: torch.dtype, group: Any, world_size: int
) -> list[torch.Tensor]:
    """Every rank's rows. The collective wants equal sizes, so all are filled up to the longest and cut again."""
    if world_size == 1:
        return [rows]
    longest = max(sizes)
    filled = rows.detach().contiguous()
    if len(rows) < longest or not longest:
        filled = torch.zeros((longest, *shape), dtype=dtype, device=rows.device)
        if len(rows):
            filled[: len(rows)] = rows
    gathered = [torch.empty_like(filled) for _ in range(world_size)]
    dist.all_gather(gathered, filled, group=group)
    return [part[:size] for part, size in zip(gathered, sizes)]


def _interleaved(parts: list[torch.Tensor], length: int) -> torch.Tensor:
    """As a DistributedSampler deals them out: rank, rank + world_size, … and beyond the end what was repeated to come out even."""
    world_size = len(parts)
    ordered = torch.empty((length, *parts[0].shape[1:]), dtype=parts[0].dtype, device=parts[0].device)
    missing: list[int] = []
    for rank, part in enumerate(parts):
        places = ordered[rank::world_size]
        missing += range(rank + len(part) * world_size, length, world_size)
        places[: len(part)] = part[: len(places)]
    _check_complete(sorted(missing), length)
    return ordered


def _in_order(rows: torch.Tensor, indices: torch.Tensor, length: int) -> torch.Tensor:
    inside = indices < length  # a sampler that fills up by wrapping around numbers its repeats beyond the end
    rows, indices = rows[inside], indices[inside]
    found = torch.zeros(length, dtype=torch.bool, device=rows.device)
    found[indices] = True
    _check_complete((~found).nonzero().flatten().tolist() if not bool(found.all()) else [], length)
    ordered = torch.empty((length, *rows.shape[1:]), dtype=rows.dtype, device=rows.device)
    ordered[indices.flip(0)] = rows.flip(0)  # of repeated rows the first one counts
    return ordered


def _check_complete(missing: list[int], length: int) -> None:
    if missing:
        shown = ", ".join(map(str, missing[:8]))
        raise PredictError("RW841", f"{len(missing)} of {length} rows are missing: {shown}", why="no rank has predicted them")
