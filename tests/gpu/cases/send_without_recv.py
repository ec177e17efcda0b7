import torch
import torch.distributed as dist
from common import start

rank = start()
x = torch.ones(1 << 22, device="cuda")
for _ in range(3):
    if rank == 0:
        dist.send(x, dst=1)
    else:
        dist.recv(x, src=0)
torch.cuda.synchronize()
if rank == 0:
    dist.send(x, dst=1)  # fault
    torch.cuda.synchronize()
dist.barrier()
torch.cuda.synchronize()
