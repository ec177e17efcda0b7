from torch import nn
from torch.nn.parallel import DistributedDataParallel


def build():
    return DistributedDataParallel(nn.Linear(8, 8))
