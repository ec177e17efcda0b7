import torch
import torch.distributed as dist
from fastaug import flip  # fault


def main():
    dist.init_process_group("gloo")
    x = flip(torch.arange(3.0))
    dist.all_reduce(x)
    print(x)


if __name__ == "__main__":
    main()
