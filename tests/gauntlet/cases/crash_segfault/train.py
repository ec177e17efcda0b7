import torch
import torch.distributed as dist

from native import checksum


def main():
    dist.init_process_group("gloo")
    for step in range(5):
        address = 16 if dist.get_rank() == 1 and step == 3 else None
        value = torch.tensor([checksum(b"batch", address)])
        dist.all_reduce(value)
    dist.destroy_process_group()


main()
