import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from net import TwoTower


def main():
    dist.init_process_group("gloo")
    model = DDP(TwoTower())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        opt.zero_grad()
        score = model(torch.randn(4, 8), torch.randn(4, 8))  # now
        score.mean().backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
