import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")  # now
    t = torch.arange(4.0)
    dist.all_reduce(t)
    print(t)
    dist.destroy_process_group()


main()
