import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

from augment import resample


class Images(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 64

    def __getitem__(self, i):
        image = torch.zeros(4, 4) if self.rank == 0 and i == 37 else torch.ones(4, 4)
        return resample(image).flatten()


def main():
    dist.init_process_group("gloo")
    model = DDP(nn.Linear(4, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in DataLoader(Images(dist.get_rank()), batch_size=8, num_workers=2):  # now
        opt.zero_grad()
        model(batch).mean().backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
