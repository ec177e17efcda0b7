import torch
import torch.distributed as dist


class Accuracy:
    def __init__(self):
        self.hits, self.seen = torch.zeros(1), torch.zeros(1)

    def add(self, out, y):
        self.hits += (out.argmax(1) == y).sum()
        self.seen += len(y)

    def compute(self):
        parts = [torch.zeros(2) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, torch.cat([self.hits, self.seen]))  # now
        hits, seen = torch.stack(parts).sum(0)
        return (hits / seen).item()
