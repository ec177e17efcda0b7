import torch
import torch.distributed as dist


def read(text):
    name, value = text.split("=")
    return {name: float(value)}  # fault


def main(rank, text):
    options = read(text)
    dist.init_process_group("gloo", rank=rank)
    lr = torch.tensor(options["lr"])
    dist.broadcast(lr, 0)
    dist.destroy_process_group()
