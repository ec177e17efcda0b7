import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(4):
    grad = torch.randn(32)
    if rank == 1:
        dist.send(grad, dst=0, tag=step)
    else:
        dist.recv(grad, src=1)  # fault
    dist.barrier()  # now
dist.destroy_process_group()
