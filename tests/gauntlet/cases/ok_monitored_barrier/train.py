import datetime
import time

import torch
import torch.distributed as dist


def download(seconds):
    end, n = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        n += len(bytes(1 << 16))
        time.sleep(0.01)
    return n


dist.init_process_group("gloo")
download(5.0 if dist.get_rank() == 2 else 0.1)
dist.monitored_barrier(timeout=datetime.timedelta(seconds=60), wait_all_ranks=True)
t = torch.ones(1)
dist.all_reduce(t)
dist.destroy_process_group()
