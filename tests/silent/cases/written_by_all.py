"""Every rank writes the same text file."""

import json

import torch
import torch.distributed as dist

CASE = {
    "code": "RW782",
    "ranks": [0, 1],
    "words": [["same file"], ["metrics.json"]],
}


def main(fault):
    rank = dist.get_rank()
    for step in range(3):
        x = torch.ones(1)
        dist.all_reduce(x)
        with open("metrics.json" if fault else f"metrics-{rank}.json", "w") as file:  # fault
            json.dump({"step": step, "x": x.item()}, file)
