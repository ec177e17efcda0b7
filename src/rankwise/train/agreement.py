"""Makes sure that all ranks train the same model: the same parameters before the first step, the same gradients after it."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _broadcast_coalesced  # type: ignore[attr-defined]

from rankwise.findings import Finding, Place, ranks_text
from rankwise.meet.differences import find_difference
from rankwise.stages import GRADIENT, PARAMETERS, Stage
from rankwise.train.assembly import Assembly
from rankwise.train.errors import start_finding

Described = list[list[Any]]  # [name, shape, dtype] of each parameter and buffer, or [name, digest] of each gradient

_BUCKET_BYTES = 64 << 20
_ANSWER_S = 60.0


def agree(assembly: Assembly, model: torch.nn.Module, visit: int) -> None:
    """The stage before the first step: raise if the models differ, then take over rank 0's values."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    described = [[name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")] for name, tensor in tensors]
    _compare(assembly, PARAMETERS, visit, described, find_different_models)
    broadcast_all(tensor.detach() for _, tensor in tensors)


def check_gradients(assembly: Assembly, model: torch.nn.Module, visit: int) -> None:
    """The stage after the first backward: raise if the gradients differ."""
    module: Any = getattr(model, "module", model)
    named = [(name, parameter.grad) for name, parameter in module.named_parameters() if parameter.requires_grad]
    described = [[name, None if gradient is None else digest_of(gradient)] for name, gradient in named]
    _compare(assembly, GRADIENT, visit, described, find_different_gradients)


def _compare(assembly: Assembly, stage: Stage, visit: int, described: Described, judge: Any) -> None:
    """Compare digests between all ranks. If they differ, one rank of the majority and one of the minority send everything."""
    text = json.dumps(described)
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    notes = assembly.pass_stage(stage, stage.limit_s or 300.0, note=digest, visit=visit)["notes"]
    if len(notes) < 2:
        return
    digests = {rank: note for note, ranks in notes.items() for rank in ranks}
    differs = find_difference(digests)
    odd = differs.odd if differs else ()
    few = min(odd) if len(odd) < len(digests) else min(rank for rank in digests if digests[rank] != digests[0])
    many = min(rank for rank in digests if digests[rank] != digests[few])
    if assembly.rank in (few, many):
        assembly.post(f"{stage.name}{visit}/shown/{assembly.rank}", text)
    shown = {rank: json.loads(assembly.read(f"{stage.name}{visit}/shown/{rank}", _ANSWER_S) or "[]") for rank in (many, few)}
    finding: Finding = judge(many, shown[many], few, shown[few], notes)
    places = {info.rank: info.place for info in assembly.infos}
    culprits = tuple(places.get(rank, Place(rank=rank)) for rank in (odd if len(odd) < len(digests) else (many, few)))
    assembly.stop(replace(finding, culprits=culprits, stage=stage.name))


def find_different_models(many: int, theirs: Described, few: int, own: Described, notes: dict[str, list[int]]) -> Finding:
    """Name the first parameter or buffer that differs between the two ranks, with both sides of it, and which ranks have which."""
    number, left, right = next((i, a, b) for i, (a, b) in enumerate(itertools.zip_longest(theirs, own), 1) if a != b)
    counts = f"; rank {many} has {len(theirs)} parameters and buffers, rank {few} {len(own)}" if len(theirs) != len(own) else ""
    sides = f"{_tensor_text(left)} on rank {many} and {_tensor_text(right)} on rank {few}"
    return start_finding("RW216", f"the model is not the same on all ranks: number {number} is {sides}{counts}", why=_groups_text(notes))


def find_different_gradients(many: int, theirs: Described, few: int, own: Described, notes: dict[str, list[int]]) -> Finding:
    """Name the first gradient that one of the two ranks lacks, which explains most; otherwise the first with another value."""
    different = [(a, b) for a, b in zip(theirs, own) if a != b]
    left, right = next(((a, b) for a, b in different if (a[1] is None) != (b[1] is None)), different[0])
    if left[1] is None or right[1] is None:
        without, having = (many, few) if left[1] is None else (few, many)
        summary = f"parameter {left[0]} has a gradient on rank {having} and none on rank {without}"
        return start_finding("RW215", summary, why=_groups_text(notes))
    summary = f"the first gradients were not synchronised: that of {left[0]} is not the same on rank {many} and rank {few}"
    why = f"each rank would take a step of its own, and the models drift apart; {_groups_text(notes)}"
    return start_finding("RW124", summary, why=why)


def digest_of(tensor: torch.Tensor) -> str:
    """A digest of the tensor's bits, the same on any device."""
    flat = tensor.detach().coalesce().values() if tensor.is_sparse else tensor.detach()
    data = flat.contiguous().cpu().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(data.numpy().tobytes(), digest_size=8).hexdigest()


def broadcast_all(tensors: Iterable[torch.Tensor]) -> None:
    """Copy rank 0's values to every rank."""
    own = list(tensors)
    flat = [tensor.reshape(-1).view(torch.uint8) for tensor in own]  # as bytes: not every backend knows every dtype
    _broadcast_coalesced(dist.distributed_c10d._get_default_group(), flat, _BUCKET_BYTES, 0)
    for tensor, values in zip(own, flat):
        tensor.copy_(values.view(tensor.dtype).view_as(tensor))  # `reshape` has made a copy of a tensor that is not contiguous


def _tensor_text(described: list[Any] | None) -> str:
    return f"{described[0]} {tuple(described[1])} {described[2]}" if described else "nothing"


def _groups_text(notes: dict[str, list[int]]) -> str:
    groups = sorted(notes.values(), key=lambda ranks: (-len(ranks), ranks))
    return f"alike are {'; '.join(ranks_text(ranks) for ranks in groups[:8])}"
