"""Trains with DDP as tutorials write it: two ranks or more, accumulation, clipping, resuming, evaluation."""

import os
import sys

import torch
import torch.distributed as dist
from data import digits, small_cnn
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

ACCUMULATE = 4


def main(path: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    training, testing = digits()
    torch.manual_seed(0)
    model = DistributedDataParallel(small_cnn())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sampler = DistributedSampler(training)
    loader = DataLoader(training, batch_size=8, sampler=sampler)
    first_epoch = 0
    if os.path.exists(path):
        saved = torch.load(path, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first_epoch = saved["epoch"] + 1
    for epoch in range(first_epoch, 5):
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader, 1):
            is_last = number % ACCUMULATE == 0 or number == len(loader)
            if is_last:
                loss = cross_entropy(model(x), y) / ACCUMULATE
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            else:
                with model.no_sync():
                    loss = cross_entropy(model(x), y) / ACCUMULATE
                    loss.backward()
        if rank == 0:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, path)
        dist.barrier()
    model.eval()
    num_right = torch.zeros(())
    with torch.inference_mode():
        for x, y in DataLoader(testing, batch_size=8, sampler=DistributedSampler(testing, shuffle=False)):
            num_right += (model(x).argmax(dim=1) == y).sum()
    dist.all_reduce(num_right)
    if rank == 0:
        print(f"{num_right / len(testing):.1%} right", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
