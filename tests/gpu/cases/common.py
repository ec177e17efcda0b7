"""Several NCCL ranks on one GPU: each pretends to be on a host of its own, so that NCCL does not refuse the shared GPU."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def start() -> int:
    os.environ["NCCL_HOSTID"] = f"host-{os.environ['RANK']}"
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    return dist.get_rank()


def small_model(norm: bool = False) -> DDP:
    layers = [nn.Linear(16, 32), nn.BatchNorm1d(32) if norm else nn.ReLU(), nn.Linear(32, 1)]
    return DDP(nn.Sequential(*layers).cuda(), device_ids=[torch.cuda.current_device()])


def train_step(model: DDP, optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
