"""A process group of one rank: every collective has its answer already, so it opens no socket and uses no device."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch.distributed import HashStore  # type: ignore[attr-defined]

NAME = "rankwise_alone"
_Group: Any = dist.ProcessGroup  # torch's stub demands overloads that a group of one does not need


def _done(result: Any) -> Any:
    """Work that is finished already."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return _create_work_from_future(future)


class AloneGroup(_Group):  # type: ignore[misc]
    """The methods that torch.distributed calls on a group, for one rank."""

    def getBackendName(self) -> str:
        return NAME

    @property
    def group_name(self) -> str:
        """Asked by device meshes, and so by FSDP; torch itself knows this name for its own groups only."""
        return str(dist.distributed_c10d._world.pg_names[self])

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return _done(tensors)

    allreduce_coalesced = broadcast = reduce = allreduce

    def barrier(self, opts: Any = None) -> Any:
        return _done([])

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        for whole, own in zip(outputs, inputs):
            whole[0].copy_(own)
        return _done(outputs)

    gather = allgather

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Any:
        for own, parts in zip(outputs, inputs):
            own.copy_(parts[0])
        return _done(outputs)

    reduce_scatter = scatter

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        for own, other in zip(outputs, inputs):
            own.copy_(other)
        return _done(outputs)

    allgather_into_tensor_coalesced = reduce_scatter_tensor_coalesced = alltoall

    def _allgather_base(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> Any:
        output.view(-1).copy_(own.reshape(-1))
        return _done([output])

    _reduce_scatter_base = all_gather_single = reduce_scatter_single = _allgather_base

    def alltoall_base(self, output: torch.Tensor, own: torch.Tensor, out_sizes: Any, in_sizes: Any, opts: Any = None) -> Any:
        return self._allgather_base(output, own)

    all_to_all_single = alltoall_base


def start_alone() -> None:
    """Make this process a group of one, with a store in memory."""
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, lambda store, rank, world_size, timeout: AloneGroup(rank, world_size), devices=["cpu", "cuda"])
    dist.init_process_group(NAME, store=HashStore(), rank=0, world_size=1)
