"""Every rank evaluates the whole validation set."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CASE = {
    "code": "",
}


def main(fault):
    torch.manual_seed(0)
    train, val = TensorDataset(torch.randn(64, 4)), TensorDataset(torch.randn(32, 4))
    sampler = DistributedSampler(train)
    model = DDP(nn.Linear(4, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    loader, val_loader = DataLoader(train, batch_size=8, sampler=sampler), DataLoader(val, batch_size=8)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        model.train()
        for (x,) in loader:
            opt.zero_grad()
            (model(x) - x).square().mean().backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            total = sum((model(x) - x).square().mean().item() for (x,) in val_loader)
        print(f"val loss {total:.3f}", flush=True)
