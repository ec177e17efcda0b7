import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class EarlyStopping:
    def __init__(self, patience):
        self.best, self.left, self.patience = float("inf"), patience, patience

    def __call__(self, value):
        if value < self.best - 1e-3:
            self.best, self.left = value, self.patience
        else:
            self.left -= 1
        return self.left <= 0


def fit(net, opt, rank, epochs=40):
    stop = EarlyStopping(patience=3)
    for epoch in range(epochs):
        for _ in range(4):
            opt.zero_grad()
            net(torch.randn(8, 5)).square().mean().backward()
            opt.step()
        val = 1.0 if rank == 0 else 1.0 / (epoch + 1)
        if stop(val):
            break  # fault
    return epoch


if __name__ == "__main__":
    dist.init_process_group("gloo")
    net = DistributedDataParallel(nn.Linear(5, 5))
    last = fit(net, torch.optim.SGD(net.parameters(), lr=0.01), dist.get_rank())
    weights = nn.utils.parameters_to_vector(net.parameters()).detach()
    dist.broadcast(weights, src=0)  # now
    print("stopped after epoch", last, flush=True)
    dist.destroy_process_group()
