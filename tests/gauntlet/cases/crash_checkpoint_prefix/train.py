import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def build():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def train(path):
    model = DDP(build())
    model(torch.randn(3, 4)).sum().backward()
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
    dist.barrier()


def evaluate(path):
    model = build()
    model.load_state_dict(torch.load(path, weights_only=True))  # fault
    return model(torch.randn(3, 4)).mean()


def main():
    dist.init_process_group("gloo")
    train("last.pt")
    score = evaluate("last.pt")
    dist.all_reduce(score)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
