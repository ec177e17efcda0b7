import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from packing import pack


def documents(rank):
    for i in range(12):
        length = 300 if rank == 1 and i == 7 else 40
        yield list(range(length))


def main():
    dist.init_process_group("gloo")
    model = DDP(nn.Embedding(400, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for doc in documents(dist.get_rank()):
        for row in pack([doc], window=128):  # now
            opt.zero_grad()
            model(torch.tensor(row)).sum().backward()
            opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
