import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from records import Records


def epoch_loss(total):
    t = torch.tensor([total, 1.0])
    dist.all_reduce(t)  # now
    return (t[0] / t[1]).item()


def train(model, loader, opt):
    total = 0.0
    for x, y in loader:  # fault
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        total += loss.item()
    return epoch_loss(total)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 1)))
    opt = torch.optim.Adam(model.parameters())
    loader = DataLoader(Records(dist.get_rank()), batch_size=10)
    for epoch in range(2):
        print(epoch, train(model, loader, opt), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
