import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUMULATE = 4


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DDP(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(opt)
    for step in range(24):
        is_last = step % ACCUMULATE == ACCUMULATE - 1
        with contextlib.nullcontext() if is_last else model.no_sync():
            (model(torch.randn(4, 6)).square().mean() / ACCUMULATE).backward()
        if is_last:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
            schedule.step()
    dist.destroy_process_group()


main()
