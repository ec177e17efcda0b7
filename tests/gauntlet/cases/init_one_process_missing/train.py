import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    return parser.parse_args()


def train(epochs):
    weight = torch.zeros(8, requires_grad=True)
    for _ in range(epochs):
        loss = F.mse_loss(torch.randn(32, 8) @ weight, torch.ones(32))
        loss.backward()
        dist.all_reduce(weight.grad)
        with torch.no_grad():
            weight -= 0.1 * weight.grad / dist.get_world_size()
        weight.grad = None
    return weight.detach()


if __name__ == "__main__":
    options = parse()
    dist.init_process_group("gloo")
    print(train(options.epochs))
    dist.destroy_process_group()
