import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3)
        self.bn = nn.BatchNorm1d(4)
        self.fc = nn.Linear(4 * 14, 2)

    def forward(self, x):
        return self.fc(torch.relu(self.bn(self.conv(x))).flatten(1))


class Fit:
    def __init__(self, rank):
        self.rank, self.net = rank, DDP(Net())
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def train_epoch(self):
        for _ in range(4):
            self.opt.zero_grad()
            self.net(torch.randn(8, 1, 16)).mean().backward()
            self.opt.step()

    def validate(self):
        return sum(self.net(torch.randn(8, 1, 16)).mean().item() for _ in range(3))  # fault

    def run(self):
        for epoch in range(3):
            self.train_epoch()
            if self.rank == 0:
                print("val", self.validate(), flush=True)
            dist.barrier()


def main(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    Fit(rank).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["GAUNTLET_PORT"])
    mp.spawn(main, args=(2,), nprocs=2)
