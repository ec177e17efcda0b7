"""Takes the checkpoint of train_ddp.py into inference: no process group, two worker processes, answers as they come."""

import sys

import torch
from train_ddp import digits

import rankwise


def main(weights: str) -> None:
    _, testing = digits()
    x, y = testing.tensors
    model = rankwise.Model("train_ddp:small_cnn", weights=weights, max_batch=32)
    with rankwise.Pool({"digits": model}, workers=2) as pool:
        answers = torch.cat(list(pool.map("digits", x.split(1)))).argmax(dim=1)
    print(f"{(answers == y).float().mean():.1%} of {len(y)} digits right, each asked for alone", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["runs/digits/last.pt"])
