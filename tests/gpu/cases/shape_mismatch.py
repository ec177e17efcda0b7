import torch
import torch.distributed as dist
from common import start

rank = start()
dist.all_reduce(torch.ones(4, device="cuda"))
torch.cuda.synchronize()
counts = torch.ones(1 << 20 if rank == 0 else 1 << 22, device="cuda")
dist.all_reduce(counts)  # fault
torch.cuda.synchronize()
print(rank, counts.sum().item(), flush=True)
dist.barrier()
torch.cuda.synchronize()
