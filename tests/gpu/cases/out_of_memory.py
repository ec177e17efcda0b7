import torch
import torch.distributed as dist
from common import start

rank = start()
torch.cuda.set_per_process_memory_fraction(0.01)
kept = []
for _step in range(400):
    x = torch.ones(8, device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    if rank == 1:
        kept.append(torch.zeros(64 << 20, device="cuda"))  # fault
