import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Archive(Dataset):
    def __init__(self):
        self.opened = False

    def __len__(self):
        return 400

    def __getitem__(self, i):
        if not self.opened:
            time.sleep(3.0)
            self.opened = True
        time.sleep(0.07)
        return torch.full((3,), float(i))


def main():
    dist.init_process_group("gloo")
    data = Archive()
    loader = DataLoader(data, batch_size=4, num_workers=2, sampler=DistributedSampler(data), persistent_workers=True)
    model = DDP(nn.Linear(3, 1))
    for step, x in enumerate(loader):
        model(x).mean().backward()
        if step == 6:
            break
    dist.destroy_process_group()
    print("enough", flush=True)


if __name__ == "__main__":
    main()
