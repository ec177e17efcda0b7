import json
import os
import time

import torch.distributed as dist


def wait_for(path):
    while not os.path.exists(path):  # now
        time.sleep(0.5)  # fault


def prepare(rank, path):
    if rank == 0:
        vocab = {chr(97 + i): i for i in range(26)}
        dist.barrier()
        with open(path, "w") as f:
            json.dump(vocab, f)
    else:
        wait_for(path)
        dist.barrier()
