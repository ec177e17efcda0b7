"""Each rank has a dataset of its own, and walks it in the same order."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "code": "",
}


def main(fault):
    torch.manual_seed(0)
    rank = dist.get_rank()
    data = TensorDataset(torch.randn(48, 4, generator=torch.Generator().manual_seed(rank)), torch.arange(48) % 3)
    loader = DataLoader(data, batch_size=8)
    model = DDP(nn.Linear(4, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for x, _y in loader:
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
            opt.step()
