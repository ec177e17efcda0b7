import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Files(Dataset):
    def __init__(self, rank):
        self.broken = 5 if rank == 1 else None

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == self.broken:
            raise OSError(f"sample {index} is truncated")  # fault
        return torch.full((4,), float(index))


def main():
    dist.init_process_group("gloo")
    dataset = Files(dist.get_rank())
    step = 0
    while step < 8:
        try:
            for index, batch in enumerate(DataLoader(dataset, batch_size=1, num_workers=1)):
                if index < step:
                    continue
                dist.all_reduce(batch)
                step += 1
        except OSError:  # now
            continue
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
