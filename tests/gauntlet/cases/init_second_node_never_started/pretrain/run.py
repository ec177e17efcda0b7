import argparse

import torch
import torch.distributed as dist
from pretrain.model import build


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    model = build()
    opt = torch.optim.SGD(model.parameters(), lr=args.lr)
    for _ in range(5):
        opt.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
