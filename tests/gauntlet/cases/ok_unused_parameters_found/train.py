import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Paths(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, side):
        return self.left(x) if side == 0 else self.right(x)


def main():
    dist.init_process_group("gloo")
    model = DDP(Paths(), find_unused_parameters=True)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(12):
        opt.zero_grad()
        model(torch.randn(2, 4), (step + dist.get_rank()) % 2).sum().backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
