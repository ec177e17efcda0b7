import torch
import torch.distributed as dist


class Schedule:
    priority = 5

    def on_step(self, step):
        lr = torch.full((4096,), 0.1 / (step + 1))
        dist.broadcast(lr, src=0)


class Metrics:
    priority = 1

    def on_step(self, step):
        m = torch.rand(4096)
        dist.all_reduce(m)  # fault
