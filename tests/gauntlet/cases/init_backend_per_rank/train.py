import os

import torch
import torch.distributed as dist


def pick_backend():
    return "nccl" if os.environ.get("CUDA_VISIBLE_DEVICES") else "gloo"


def main():
    dist.init_process_group(pick_backend())  # fault
    t = torch.ones(1)
    dist.all_reduce(t)
    print(t)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
