import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from stream import TextStream


def lines(rank):
    for i in range(30):
        yield b"\xff\xfe broken" if rank == 1 and i == 9 else b"a line of text"


def main():
    dist.init_process_group("gloo")
    model = DDP(nn.Linear(1, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for text in TextStream(lines(dist.get_rank())):  # now
        opt.zero_grad()
        model(torch.tensor([[float(len(text))]])).sum().backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
