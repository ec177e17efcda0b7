import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from metrics import Accuracy
from tracking import Logger


def main():
    dist.init_process_group("gloo")
    model = DDP(nn.Linear(4, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    accuracy, log = Accuracy(), Logger()
    for step in range(20):
        x, y = torch.randn(8, 4), torch.randint(3, (8,))
        opt.zero_grad()
        out = model(x)
        nn.functional.cross_entropy(out, y).backward()
        opt.step()
        accuracy.add(out, y)
        if step % 10 == 9:
            log.scalar("accuracy", accuracy)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
