import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Run:
    def __init__(self):
        dist.init_process_group("gloo")
        self.is_main = dist.get_rank() == 0
        self.model = DDP(nn.Linear(12, 3))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def checkpoint(self, step):
        if self.is_main:
            dcp.save({"model": self.model.module.state_dict()}, checkpoint_id=f"ckpt/{step}")  # fault

    def loop(self):
        for step in range(8):
            self.opt.zero_grad()
            self.model(torch.randn(4, 12)).abs().mean().backward()
            self.opt.step()
            if step == 3:
                self.checkpoint(step)


if __name__ == "__main__":
    Run().loop()
    dist.destroy_process_group()
