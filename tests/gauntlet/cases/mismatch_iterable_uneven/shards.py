import torch
from torch.utils.data import IterableDataset


class ShardReader(IterableDataset):
    counts = (48, 40, 48)

    def __init__(self, rank):
        self.rank = rank

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.rank)
        for _ in range(self.counts[self.rank]):
            yield torch.randn(9, generator=generator)
