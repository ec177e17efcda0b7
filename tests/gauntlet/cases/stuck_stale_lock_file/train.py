import argparse

import torch
import torch.distributed as dist

from baton import Baton


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", required=True)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    baton = Baton(f"{args.cache}/lock")
    if baton.try_acquire():
        baton.release()
    else:
        baton.wait()  # now
    t = torch.ones(1)
    dist.all_reduce(t)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
