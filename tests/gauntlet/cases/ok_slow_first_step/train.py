import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Autotuned(nn.Module):
    """Tries out its kernels on the first call."""

    def __init__(self, seconds):
        super().__init__()
        self.lin, self.seconds, self.tuned = nn.Linear(32, 32), seconds, False

    def tune(self):
        end = time.monotonic() + self.seconds
        probe = torch.randn(64, 64)
        while time.monotonic() < end:
            probe = torch.tanh(probe @ probe)
        self.tuned = True

    def forward(self, x):
        if not self.tuned:
            self.tune()
        return self.lin(x)


def main():
    dist.init_process_group("gloo")
    model = DDP(Autotuned(6.0))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        opt.zero_grad()
        model(torch.randn(4, 32)).square().mean().backward()
        opt.step()
    print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
