import torch.distributed as dist


class Topology:
    def __init__(self, rank, world):
        self.tensor = None
        if rank < 2:
            self.tensor = dist.new_group([0, 1])  # fault
        self.head = dist.new_group(range(world))  # now
