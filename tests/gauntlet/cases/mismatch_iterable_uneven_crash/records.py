import torch
from torch.utils.data import IterableDataset

FILES = {0: [30, 40, 20], 1: [30, 40]}


class Records(IterableDataset):
    def __init__(self, rank):
        self.files = FILES[rank]

    def __iter__(self):
        for size in self.files:
            for _ in range(size):
                x = torch.randn(7)
                yield x, x.sum(0, keepdim=True)
