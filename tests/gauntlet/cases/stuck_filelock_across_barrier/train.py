import os
import time

import torch.distributed as dist
from filelock import FileLock


def build_once(rank):
    time.sleep(0.3 * rank)
    with FileLock("vocab.lock"):  # fault
        if not os.path.exists("vocab.txt"):
            with open("vocab.txt", "w") as f:
                f.write("the\na\n")
        dist.barrier()  # now
    with open("vocab.txt") as f:
        return f.read().split()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    print(len(build_once(dist.get_rank())))
    dist.destroy_process_group()
