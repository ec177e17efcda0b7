import torch
import torch.distributed as dist


def pad(rows, length):
    out = torch.zeros(len(rows), length)  # fault
    return out


dist.init_process_group("gloo")
for step in range(5):
    length = 10**14 if dist.get_rank() == 1 and step == 3 else 16
    x = pad([[1]] * 4, length).sum()
    dist.all_reduce(x)
dist.destroy_process_group()
