import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")  # now
    x = torch.ones(10)
    dist.all_reduce(x)
    print(x.sum().item())


if __name__ == "__main__":
    main()
