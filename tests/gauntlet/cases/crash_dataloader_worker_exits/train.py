import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    def __init__(self, broken):
        self.broken = broken

    def __len__(self):
        return 32

    def __getitem__(self, i):
        if i == self.broken:
            os._exit(1)  # fault
        return torch.rand(2)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    broken = 17 if dist.get_rank() == 1 else None
    for clip in DataLoader(Clips(broken), batch_size=4, num_workers=2):  # now
        m = clip.mean()
        dist.all_reduce(m)
    dist.destroy_process_group()
