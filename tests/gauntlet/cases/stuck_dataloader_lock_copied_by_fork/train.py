import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from index import Index


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    index = Index(100)
    loader = DataLoader(index, batch_size=10, num_workers=1)
    if rank == 0:
        with index.exclusive():
            batches = iter(loader)
    else:
        batches = iter(loader)
    for x in batches:  # now
        m = x.mean()
        dist.all_reduce(m)
    print(m.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
