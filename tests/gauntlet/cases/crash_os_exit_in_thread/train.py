import os
import time

import torch
import torch.distributed as dist

from watchdog import Watchdog


def main():
    dist.init_process_group("gloo")
    if os.environ["RANK"] == "0":
        Watchdog(limit=1.0).start()
    for step in range(500):
        x = torch.rand(8)
        dist.all_reduce(x)
        time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
