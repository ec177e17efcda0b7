import argparse
import logging
import sys

import torch
import torch.distributed as dist

log = logging.getLogger("chatty")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=10)
    args = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    dist.init_process_group("gloo")
    for i in range(args.lines):
        print(f"line {i} of rank {dist.get_rank()}: " + "." * 60)
        if i % 2000 == 0:
            log.info("at %d", i)
            x = torch.ones(1)
            dist.all_reduce(x)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
