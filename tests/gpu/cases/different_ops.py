import torch
import torch.distributed as dist
from common import start

rank = start()
x = torch.ones(64, device="cuda")
for _ in range(5):
    dist.all_reduce(x)
torch.cuda.synchronize()


def publish(t):
    dist.broadcast(t, src=0)


def collect(t):
    dist.all_reduce(t)


(publish if rank == 0 else collect)(x)  # fault
torch.cuda.synchronize()
dist.all_reduce(x)
torch.cuda.synchronize()
