import ctypes

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Audio(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 20

    def __getitem__(self, i):
        if self.rank == 1 and i == 11:
            ctypes.string_at(0)  # fault
        return torch.rand(3)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for x in DataLoader(Audio(dist.get_rank()), batch_size=2, num_workers=1):  # now
        m = x.mean()
        dist.all_reduce(m)
    dist.destroy_process_group()
