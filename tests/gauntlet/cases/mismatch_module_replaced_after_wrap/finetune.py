import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Classifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 10), nn.GELU())
        self.classifier = nn.Linear(10, classes)

    def forward(self, x):
        return self.classifier(self.body(x))


def adapt(model, classes):
    model.module.classifier = nn.Linear(10, classes)  # fault
    return model


def main(rank, world_size):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(1)
    model = adapt(DDP(Classifier(classes=100)), classes=5)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        opt.zero_grad()
        model(torch.randn(3, 10)).logsumexp(1).mean().backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=os.environ["GAUNTLET_PORT"])
    mp.spawn(main, nprocs=2, args=(2,))
